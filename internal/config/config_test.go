package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestPrecedence(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "config.yaml")
	write(t, file, "node-name: from-file\nsecure-port: 7000\ndata-dir: /from/file\nmax-pods: 5\nimage-pull-progress-timeout: 90s\npinned-images: [pause, \"infra/*\"]\n")
	write(t, filepath.Join(dir, "config.d", "10.yaml"), "secure-port: 7001\nkubelet-port: 7100\n")
	write(t, filepath.Join(dir, "config.d", "20.yaml"), "secure-port: 7002\n")
	t.Setenv(EnvDataDir, "/from/env")
	c := Default()
	if err := c.Load(file); err != nil {
		t.Fatal(err)
	}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	c.AddFlags(flags)
	if err := flags.Parse([]string{"--max-pods=7"}); err != nil {
		t.Fatal(err)
	}
	if err := c.Complete(); err != nil {
		t.Fatal(err)
	}
	if c.NodeName != "from-file" || c.SecurePort != 7002 || c.KubeletPort != 7100 || c.DataDir != "/from/env" || c.MaxPods != 7 {
		t.Errorf("got %+v", c)
	}
	if c.ImagePullProgressTimeout.Duration != 90*time.Second || len(c.PinnedImages) != 2 || len(c.RegistryCertsDirs) != 2 {
		t.Errorf("images: %+v", c)
	}
	if c.ManifestDir != "/from/env/manifests" {
		t.Errorf("the manifests of another instance are at %s", c.ManifestDir)
	}
}

func TestWhatIsWrongIsNamed(t *testing.T) {
	for want, change := range map[string]func(*Config){
		`--node-name "A_B"`:                           func(c *Config) { c.NodeName = "A_B" },
		"--secure-port 0 must be":                     func(c *Config) { c.SecurePort = 0 },
		"--secure-port and --kubelet-port":            func(c *Config) { c.KubeletPort = c.SecurePort },
		"must be one of IPv4 and one of IPv6":         func(c *Config) { c.PodCIDR = "10.1.0.0/24,10.2.0.0/24" },
		`--pod-cidr "x" is not a network`:             func(c *Config) { c.PodCIDR = "x" },
		"--pod-cidr 10.0.0.0/30 is too small":         func(c *Config) { c.PodCIDR = "10.0.0.0/30" },
		"--service-cidr 10.244.0.0/16 overlap":        func(c *Config) { c.ServiceCIDR = "10.244.0.0/16" },
		"--service-cidr 10.1.0.0/24,10.2.0.0/24: two": func(c *Config) { c.ServiceCIDR = "10.1.0.0/24,10.2.0.0/24" },
		`--service-cidr "x" is not a network`:         func(c *Config) { c.ServiceCIDR = "10.1.0.0/24,x" },
		"--pod-cidr fd00::/64 and --service-cidr fd00::/112 overlap": func(c *Config) {
			c.PodCIDR, c.ServiceCIDR = "10.1.0.0/24,fd00::/64", "10.2.0.0/24,fd00::/112"
		},
		"must begin with a network of the address family of --node-ip 192.0.2.1": func(c *Config) {
			c.NodeIP, c.ServiceCIDR = "192.0.2.1", "fd00::/112,10.2.0.0/24"
		},
		`--node-ip "x" is not an IP address`:                           func(c *Config) { c.NodeIP = "192.0.2.1,x" },
		"--node-ip 192.0.2.1,192.0.2.2 must be one address, or two of": func(c *Config) { c.NodeIP = "192.0.2.1,192.0.2.2" },
		"--data-dir and --run-dir are both /same":                      func(c *Config) { c.DataDir, c.RunDir = "/same", "/same" },
		"--image-pull-progress-timeout -1s":                            func(c *Config) { c.ImagePullProgressTimeout.Duration = -time.Second },
		`--proxy "x" must be nftables or none`:                         func(c *Config) { c.Proxy = "x" },
		`--local-storage "x" must be directories or none`:              func(c *Config) { c.LocalStorage = "x" },
		`--cloud-provider "aws" must be external, or left out`:         func(c *Config) { c.CloudProvider = "aws" },
		"--max-pods -1": func(c *Config) { c.MaxPods = -1 },
	} {
		c := Default()
		change(&c)
		if err := c.Complete(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %s, got %v", want, err)
		}
	}
}

func TestBadFiles(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "c.yaml")
	c := Default()
	if err := c.Load(file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a missing file: %v", err)
	}
	write(t, file, "secure-prot: 1\n")
	if err := c.Load(file); err == nil || !strings.Contains(err.Error(), "secure-prot") {
		t.Errorf("a misspelt field: %v", err)
	}
	write(t, file, "secure-port: much\n")
	if err := c.Load(file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a wrong type: %v", err)
	}
}

func TestInstancesDiffer(t *testing.T) {
	a, b := Config{DataDir: "/a"}, Config{DataDir: "/b"}
	if a.InstanceID() == b.InstanceID() || len(a.InstanceID()) != 8 {
		t.Errorf("%s %s", a.InstanceID(), b.InstanceID())
	}
}

// TestPipeAmongDropIns: `wherry up` used to block on a pipe, and did not even end on SIGTERM.
func TestPipeAmongDropIns(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "config.d"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.yaml"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "config.d/x.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := Default()
	if err := c.Load(filepath.Join(dir, "config.yaml")); err == nil || !strings.Contains(err.Error(), "x.yaml: is not a regular file") {
		t.Errorf("got %v", err)
	}
}
