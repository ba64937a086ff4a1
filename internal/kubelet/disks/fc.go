package disks

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// Fibre is a disk at Fibre Channel, by the names of its ports with a LUN, or by its own names. The names are as the API
// has them.
type Fibre struct {
	WWNs  []string `json:",omitempty"`
	LUN   int32    `json:",omitempty"`
	WWIDs []string `json:",omitempty"`
}

// Check refuses names that are none.
func (f *Fibre) Check() error {
	for _, name := range slices.Concat(f.WWNs, f.WWIDs) {
		if name == "" || filepath.Base(name) != name || name != globless(name) {
			return fmt.Errorf("%q is no name of a Fibre Channel port or disk", name)
		}
	}
	return nil
}

// globless is a name without what a pattern would take for something else.
func globless(name string) string {
	return string(slices.DeleteFunc([]byte(name), func(b byte) bool { return b <= ' ' || slices.Contains([]byte("*?[]\\"), b) }))
}

// FindFibre returns the device of a disk. The node's adapters look for it if it is not there.
func (n Node) FindFibre(ctx context.Context, f *Fibre) (string, error) {
	if err := f.Check(); err != nil {
		return "", err
	}
	names, err := n.fibreDisks(f)
	if err != nil {
		return "", err
	}
	if len(names) == 0 {
		if err := n.scanFibre(); err != nil {
			return "", err
		}
		_, err := appears(ctx, func() (string, error) {
			names, err = n.fibreDisks(f)
			if err != nil || len(names) == 0 {
				return "", err
			}
			return names[0], nil
		})
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			err = fmt.Errorf("no fc disk found: the adapters of this node see none with that name")
		}
		if err != nil {
			return "", err
		}
	}
	device, err := n.together(ctx, names)
	if err != nil {
		return "", err
	}
	return n.device(device), nil
}

// fibreDisks returns the names of the disks that are the one, by the links that udev makes.
func (n Node) fibreDisks(f *Fibre) ([]string, error) {
	var patterns []string
	for _, wwn := range f.WWNs {
		link := "fc-0x" + wwn + "-lun-" + strconv.Itoa(int(f.LUN))
		patterns = append(patterns, n.device("disk/by-path/"+link), n.device("disk/by-path/pci-*-"+link))
	}
	for _, wwid := range f.WWIDs {
		patterns = append(patterns, n.device("disk/by-id/scsi-"+wwid))
	}
	var names []string
	for _, pattern := range patterns {
		links, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, link := range links {
			disk, err := filepath.EvalSymlinks(link)
			if errors.Is(err, fs.ErrNotExist) { // it has just gone
				continue
			}
			if err != nil {
				return nil, err
			}
			for _, name := range n.slaves(filepath.Base(disk)) {
				if !slices.Contains(names, name) {
					names = append(names, name)
				}
			}
		}
	}
	return names, nil
}

// scanFibre has the adapters look for disks.
func (n Node) scanFibre() error {
	hosts, err := filepath.Glob(n.sys("class", "fc_host", "host*"))
	if err != nil {
		return err
	}
	if len(hosts) == 0 {
		return errors.New("no fc disk found: this node has no Fibre Channel adapter")
	}
	for _, host := range hosts {
		if err := os.WriteFile(n.sys("class", "scsi_host", filepath.Base(host), "scan"), []byte("- - -"), 0o200); err != nil {
			return fmt.Errorf("look for disks by adapter %s: %w", filepath.Base(host), err)
		}
	}
	return nil
}

// LeaveFibre has the node forget a disk.
func (n Node) LeaveFibre(ctx context.Context, f *Fibre) error {
	names, err := n.fibreDisks(f)
	if err != nil {
		return err
	}
	return n.drop(ctx, names)
}
