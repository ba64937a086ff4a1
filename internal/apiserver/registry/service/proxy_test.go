package service

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

func TestPortName(t *testing.T) {
	svc := &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}, {Name: "admin", Port: 8080}}}}
	for given, want := range map[string]string{"": "", "http": "http", "80": "http", "8080": "admin", "other": "other"} {
		if got, err := portName(svc, given); err != nil || got != want {
			t.Errorf("%q: %q, %v", given, got, err)
		}
	}
	if _, err := portName(svc, "81"); err == nil || !strings.Contains(err.Error(), `no service port 81 found for service`) {
		t.Errorf("got %v", err)
	}
}

func TestReadyEndpointsOfAPort(t *testing.T) {
	slice := func(port string, n int32, ready *bool, ips ...string) discoveryv1.EndpointSlice {
		s := discoveryv1.EndpointSlice{Ports: []discoveryv1.EndpointPort{{Name: &port, Port: &n}, {Name: &port}}}
		for _, ip := range ips {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{ip}, Conditions: discoveryv1.EndpointConditions{Ready: ready}})
		}
		return s
	}
	all := []discoveryv1.EndpointSlice{
		slice("http", 80, new(true), "10.0.0.1", "not an address"), slice("http", 81, nil, "fd00::1"),
		slice("http", 80, new(false), "10.0.0.2"), slice("admin", 80, new(true), "10.0.0.3"),
	}
	var got []string
	for _, c := range ready(all, "http") {
		got = append(got, c.at.String())
	}
	if strings.Join(got, " ") != "10.0.0.1:80 [fd00::1]:81" {
		t.Errorf("got %v", got)
	}
}
