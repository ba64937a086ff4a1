// Command cloud is the controller manager of a cloud that is a file, built on upstream's k8s.io/cloud-provider as those of
// real clouds are: for tests of nodes with --cloud-provider external.
//
//	cloud --kubeconfig FILE --cloud-config CLOUD.json …
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/app"
	"k8s.io/cloud-provider/app/config"
	"k8s.io/cloud-provider/names"
	"k8s.io/cloud-provider/options"
	"k8s.io/component-base/cli"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/klog/v2"
)

// provider is the cloud's name.
const provider = "paper"

func main() {
	cloudprovider.RegisterCloudProvider(provider, func(file io.Reader) (cloudprovider.Interface, error) {
		f, ok := file.(*os.File)
		if !ok {
			return nil, fmt.Errorf("--cloud-config is missing: the file that is the cloud")
		}
		return &paper{f.Name()}, nil
	})
	opts, err := options.NewCloudControllerManagerOptions()
	if err != nil {
		klog.Fatal(err)
	}
	opts.KubeCloudShared.CloudProvider.Name = provider
	command := app.NewCloudControllerManagerCommand(opts, connect, app.DefaultInitFuncConstructors, names.CCMControllerAliases(), cliflag.NamedFlagSets{}, wait.NeverStop)
	os.Exit(cli.Run(command))
}

func connect(c *config.CompletedConfig) cloudprovider.Interface {
	p := c.ComponentConfig.KubeCloudShared.CloudProvider
	cloud, err := cloudprovider.InitCloudProvider(p.Name, p.CloudConfigFile)
	if err != nil {
		klog.Fatal(err)
	}
	return cloud
}

// paper is a cloud. It reads the file each time.
type paper struct{ file string }

// instance is a machine of the cloud's.
type instance struct {
	Addresses    []v1.NodeAddress `json:"addresses"`
	Type         string           `json:"type"`
	Zone, Region string
	// Off: it is there, and has been switched off.
	Off bool `json:"off"`
}

// state is what the file says.
type state struct {
	Instances map[string]instance `json:"instances"`
	// Balancer is the address of all load balancers.
	Balancer string `json:"balancer"`
}

func (p *paper) read() (s state, err error) {
	doc, err := os.ReadFile(p.file)
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(doc, &s)
}

func (p *paper) Initialize(cloudprovider.ControllerClientBuilder, <-chan struct{}) {}
func (p *paper) LoadBalancer() (cloudprovider.LoadBalancer, bool)                  { return p, true }
func (p *paper) Instances() (cloudprovider.Instances, bool)                        { return nil, false }
func (p *paper) InstancesV2() (cloudprovider.InstancesV2, bool)                    { return p, true }
func (p *paper) Zones() (cloudprovider.Zones, bool)                                { return nil, false }
func (p *paper) Clusters() (cloudprovider.Clusters, bool)                          { return nil, false }
func (p *paper) Routes() (cloudprovider.Routes, bool)                              { return nil, false }
func (p *paper) ProviderName() string                                              { return provider }
func (p *paper) HasClusterID() bool                                                { return true }

func (p *paper) InstanceExists(_ context.Context, node *v1.Node) (bool, error) {
	s, err := p.read()
	_, ok := s.Instances[node.Name]
	return ok, err
}

func (p *paper) InstanceShutdown(_ context.Context, node *v1.Node) (bool, error) {
	s, err := p.read()
	return s.Instances[node.Name].Off, err
}

func (p *paper) InstanceMetadata(_ context.Context, node *v1.Node) (*cloudprovider.InstanceMetadata, error) {
	s, err := p.read()
	if err != nil {
		return nil, err
	}
	i, ok := s.Instances[node.Name]
	if !ok {
		return nil, cloudprovider.InstanceNotFound
	}
	return &cloudprovider.InstanceMetadata{
		ProviderID: provider + "://" + i.Zone + "/" + node.Name, InstanceType: i.Type, NodeAddresses: i.Addresses, Zone: i.Zone, Region: i.Region,
	}, nil
}

func (p *paper) GetLoadBalancerName(_ context.Context, _ string, service *v1.Service) string {
	return cloudprovider.DefaultLoadBalancerName(service)
}

func (p *paper) GetLoadBalancer(_ context.Context, _ string, service *v1.Service) (*v1.LoadBalancerStatus, bool, error) {
	return &service.Status.LoadBalancer, len(service.Status.LoadBalancer.Ingress) > 0, nil
}

func (p *paper) EnsureLoadBalancer(context.Context, string, *v1.Service, []*v1.Node) (*v1.LoadBalancerStatus, error) {
	s, err := p.read()
	return &v1.LoadBalancerStatus{Ingress: []v1.LoadBalancerIngress{{IP: s.Balancer}}}, err
}

func (p *paper) UpdateLoadBalancer(context.Context, string, *v1.Service, []*v1.Node) error {
	return nil
}

func (p *paper) EnsureLoadBalancerDeleted(context.Context, string, *v1.Service) error { return nil }
