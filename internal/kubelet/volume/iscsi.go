package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/api/attachments"
	"wherry.dev/internal/kubelet/disks"
)

// iscsi is a disk of an iSCSI target, for a pod by its own spec or by a PersistentVolume. The node logs in to the target
// with open-iscsi.
type iscsi struct {
	placed
	m *Mounter
}

const (
	iscsiFolder = "kubernetes.io~iscsi"
	iscsiPlugin = "iscsi"
)

func (m *Mounter) iscsiVolumes() kind { return iscsi{iscsiFolder, m} }

func (iscsi) is(s *spec) bool {
	if s.pv != nil {
		return s.pv.Spec.ISCSI != nil
	}
	return s.own.ISCSI != nil
}

func (iscsi) ready(dir string) (bool, error) { return diskReady(dir) }

func (i iscsi) tearDown(ctx context.Context, dir string) error {
	return i.m.leaveDisk(ctx, iscsiPlugin, dir)
}

// iscsiSource is what both forms of the API say.
type iscsiSource struct {
	disks.Target
	volume   v1.UniqueVolumeName
	fsType   string
	readOnly bool
	chap     bool // for sessions
	secret   *v1.SecretReference
}

func iscsiSourceOf(s *spec) iscsiSource {
	var out iscsiSource
	var initiator *string
	portal, more, called := "", []string(nil), s.name
	if s.pv != nil {
		src := s.pv.Spec.ISCSI
		called, portal, more, initiator = s.pv.Name, src.TargetPortal, src.Portals, src.InitiatorName
		out = iscsiSource{
			Target: disks.Target{IQN: src.IQN, LUN: src.Lun, Interface: src.ISCSIInterface},
			volume: attachments.ByNode(&s.pv.Spec.PersistentVolumeSource), fsType: src.FSType, readOnly: src.ReadOnly,
			chap: src.SessionCHAPAuth, secret: attachments.ISCSISecret(s.pv),
		}
	} else {
		src := s.own.ISCSI
		portal, more, initiator = src.TargetPortal, src.Portals, src.InitiatorName
		out = iscsiSource{
			Target: disks.Target{IQN: src.IQN, LUN: src.Lun, Interface: src.ISCSIInterface},
			volume: attachments.OwnByNode(s.own), fsType: src.FSType, readOnly: src.ReadOnly, chap: src.SessionCHAPAuth,
		}
		if src.SecretRef != nil {
			out.secret = &v1.SecretReference{Namespace: s.pod.Namespace, Name: src.SecretRef.Name}
		}
	}
	for _, p := range append([]string{portal}, more...) {
		if p = disks.Portal(p); !slices.Contains(out.Portals, p) {
			out.Portals = append(out.Portals, p)
		}
	}
	if out.Interface == "" { // of a static pod
		out.Interface = "default"
	}
	if initiator != nil {
		out.Initiator, out.Template = *initiator, out.Interface
		out.Interface = out.Portals[0] + ":" + called // as upstream calls it
	}
	return out
}

func (i iscsi) setUp(ctx context.Context, s *spec, dir string) (time.Time, error) {
	src := iscsiSourceOf(s)
	if err := src.Check(); err != nil {
		return time.Time{}, err
	}
	return time.Time{}, i.m.useDisk(ctx, dir, &diskUse{
		spec: s, plugin: iscsiPlugin, id: fmt.Sprintf("%s %d", src.Key(), src.LUN), volume: src.volume,
		is:       diskRecord{ISCSI: &src.Target},
		readOnly: s.readOnly || src.readOnly, fsType: src.fsType,
		connect: func(ctx context.Context, r *diskRecord, save func() error) (string, error) {
			secrets, err := i.secrets(ctx, src)
			if err != nil {
				return "", err
			}
			who := credentials{own: s.pv == nil}
			if len(secrets) > 0 {
				who.secret, who.settings = src.secret.Namespace+"/"+src.secret.Name, secrets
			}
			return i.m.joinTarget(ctx, r, who, save)
		},
	})
}

// iscsiSecret is the type that a secret for CHAP has.
const iscsiSecret = "kubernetes.io/iscsi-chap"

// secrets returns the settings of open-iscsi for CHAP. Those for discovery are not needed: no target is discovered.
func (i iscsi) secrets(ctx context.Context, src iscsiSource) (map[string]string, error) {
	if !src.chap || src.secret == nil {
		return nil, nil
	}
	if i.m.CSI == nil {
		return nil, errors.New("CHAP needs a secret, and no API server is configured")
	}
	secret, err := i.m.CSI.Client.CoreV1().Secrets(src.secret.Namespace).Get(ctx, src.secret.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("couldn't get secret %s/%s: %w", src.secret.Namespace, src.secret.Name, err)
	}
	if secret.Type != iscsiSecret {
		return nil, fmt.Errorf("cannot get secret of type %s: %s/%s is of type %q", iscsiSecret, secret.Namespace, secret.Name, secret.Type)
	}
	out := map[string]string{"node.session.auth.authmethod": "CHAP"}
	for _, key := range []string{"username", "password", "username_in", "password_in"} {
		key = "node.session.auth." + key
		if value := string(secret.Data[key]); value != "" {
			out[key] = value
		}
	}
	return out, nil
}

// ofTarget stands for a pod's UID where an iSCSI target is meant.
const ofTarget types.UID = "iscsi"

// credentials are by what a pod gets a session.
type credentials struct {
	// own: the pod describes the volume itself.
	own bool
	// secret has the settings; "" if there is none.
	secret   string
	settings map[string]string
}

func (c credentials) digest() (string, error) {
	if c.secret == "" {
		return "", nil
	}
	doc, err := json.Marshal(c.settings)
	return sum(string(doc)), err
}

// mayShare says why a pod does not get a session that was made for others: it would have what only they may have. The same
// secret may have changed meanwhile, and two may say the same.
func (c credentials) mayShare(r *diskRecord) error {
	digest, err := c.digest()
	if err == nil && len(r.Sessions) > 0 && r.Digest != digest && r.Secret != c.secret {
		err = fmt.Errorf("this node is logged in to %s for other pods, with other credentials", r.ISCSI.IQN)
	}
	return err
}

// joinTarget logs in to a target, and writes down which sessions are made for pods. One that another disk's pods have is
// this disk's, too: the last one ends it.
func (m *Mounter) joinTarget(ctx context.Context, r *diskRecord, who credentials, save func() error) (device string, err error) {
	digest, err := who.digest()
	if err != nil {
		return "", err
	}
	err = m.calls.alone(ctx, ofTarget, r.ISCSI.Key(), func() error {
		there, err := m.disks.Sessions(r.ISCSI)
		if err != nil {
			return err
		}
		r.keep(there)
		if err := who.mayShare(r); err != nil {
			return err
		}
		var shared []string
		err = m.eachOf(r.ISCSI, func(_ diskFiles, other *diskRecord) error {
			other.keep(there)
			shared = append(shared, other.Sessions...)
			return who.mayShare(other)
		})
		if err != nil {
			return err
		}
		if len(r.Sessions) == 0 || r.Secret == who.secret {
			r.Secret, r.Digest = who.secret, digest
		}
		announce := func(portal string) error {
			if slices.Contains(r.Sessions, portal) {
				return nil
			}
			r.Sessions = append(r.Sessions, portal)
			return save()
		}
		for _, portal := range there {
			switch {
			case slices.Contains(shared, portal):
				if err := announce(portal); err != nil {
					return err
				}
			case who.own:
				return fmt.Errorf("the session with portal %s of %s is the machine's own: only a PersistentVolume may use it", portal, r.ISCSI.IQN)
			}
		}
		device, err = m.disks.Login(ctx, r.ISCSI, who.settings, announce)
		if err == nil {
			return nil
		}
		// Who was not let in has no say in who is.
		there, failed := m.disks.Sessions(r.ISCSI)
		if failed == nil {
			r.keep(there)
			failed = save()
		}
		return errors.Join(err, failed)
	})
	return device, err
}

// keep leaves out sessions that are not there.
func (r *diskRecord) keep(there []string) {
	r.Sessions = slices.DeleteFunc(r.Sessions, func(portal string) bool { return !slices.Contains(there, portal) })
}

// eachOf calls f for the disks of a target.
func (m *Mounter) eachOf(t *disks.Target, f func(diskFiles, *diskRecord) error) error {
	return eachDisk(m.Dirs, iscsiPlugin, func(files diskFiles, r *diskRecord) error {
		if r.ISCSI == nil || r.ISCSI.Key() != t.Key() {
			return nil
		}
		return f(files, r)
	})
}

// leaveTarget has the node forget a disk, and ends the sessions that no other disk needs.
func (m *Mounter) leaveTarget(ctx context.Context, files diskFiles, r *diskRecord) error {
	if len(r.Sessions) == 0 {
		return nil
	}
	return m.calls.alone(ctx, ofTarget, r.ISCSI.Key(), func() error {
		if err := m.disks.Leave(ctx, r.ISCSI, r.Sessions); err != nil {
			return err
		}
		var shared []string
		err := m.eachOf(r.ISCSI, func(other diskFiles, its *diskRecord) error {
			if other != files {
				shared = append(shared, its.Sessions...)
			}
			return nil
		})
		if err != nil {
			return err
		}
		alone := slices.DeleteFunc(slices.Clone(r.Sessions), func(portal string) bool { return slices.Contains(shared, portal) })
		if err := m.disks.Logout(ctx, r.ISCSI, alone); err != nil {
			return err
		}
		r.Sessions = nil // for those who look next, before the record is gone
		return files.write(r)
	})
}
