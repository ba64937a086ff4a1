// Standin plays the programs that critest expects in its images and that are not available offline:
// nginx, httpd, nonewprivs, the ipcs and pgrep that Debian's busybox lacks, and a shell. It is one
// static program; the name it is called by selects the one to play.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// master is how nginx names its first process.
const master = "nginx: master process nginx"

func main() {
	if err := run(os.Args); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if args[0] == master {
		return nginx(args[1:])
	}
	switch name := filepath.Base(args[0]); name {
	case "nginx":
		args[0] = master
		return syscall.Exec("/usr/sbin/nginx", args, os.Environ())
	case "httpd":
		fmt.Println("httpd: resuming normal operations")
		return http.ListenAndServe(":80", page())
	case "nnp":
		fmt.Printf("Effective uid: %d\n", os.Geteuid())
		return nil
	case "ipcs":
		return sharedMemory()
	case "pgrep":
		return pgrep(args[1:])
	case "sh":
		return shell(args)
	default:
		return fmt.Errorf("standin does not play %s", name)
	}
}

func page() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "<h1>It works!</h1>") })
}

func nginx(args []string) error {
	f := flag.NewFlagSet("nginx", flag.ContinueOnError)
	port := f.Int("port", 80, "where it listens")
	if err := f.Parse(args); err != nil {
		return err
	}
	if err := os.WriteFile("/var/run/nginx.pid", fmt.Appendln(nil, os.Getpid()), 0o644); err != nil {
		return err
	}
	return http.ListenAndServe(fmt.Sprintf(":%d", *port), page())
}

// sharedMemory lists the segments of the IPC namespace, as `ipcs -m` does.
func sharedMemory() error {
	doc, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil {
		return err
	}
	fmt.Println("------ Shared Memory Segments --------")
	for i, l := range strings.Split(strings.TrimSpace(string(doc)), "\n") {
		if f := strings.Fields(l); i > 0 && len(f) > 3 {
			fmt.Println(f[0], f[1], f[2], f[3])
		}
	}
	return nil
}

// shell is busybox's, except for a command of one word: there Debian's busybox runs its own applet,
// even if the file of that name may not be executed.
func shell(args []string) error {
	if len(args) != 3 || args[1] != "-c" || strings.ContainsAny(args[2], " \t\n;&|<>()$`\\\"'*?[#~=%") {
		return syscall.Exec("/bin/busybox", append([]string{"sh"}, args[1:]...), os.Environ())
	}
	denied := false
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		err := syscall.Exec(filepath.Join(dir, args[2]), args[2:], os.Environ())
		denied = denied || errors.Is(err, fs.ErrPermission)
	}
	if denied {
		fmt.Fprintf(os.Stderr, "%s: %s: Permission denied\n", args[0], args[2])
		os.Exit(126)
	}
	fmt.Fprintf(os.Stderr, "%s: %s: not found\n", args[0], args[2])
	os.Exit(127)
	return nil
}

// pgrep prints the processes whose name contains the pattern.
func pgrep(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: pgrep NAME")
	}
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return err
	}
	found := false
	for _, path := range names {
		comm, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it has ended meanwhile
		}
		if err != nil {
			return err
		}
		pid := filepath.Base(filepath.Dir(path))
		if strings.Contains(string(comm), args[0]) && pid != fmt.Sprint(os.Getpid()) {
			fmt.Println(pid)
			found = true
		}
	}
	if !found {
		os.Exit(1)
	}
	return nil
}
