package bootstrap

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	meshconfig "istio.io/api/mesh/v1alpha1"
	"sigs.k8s.io/yaml"

	"google.golang.org/protobuf/encoding/protojson"
)

// ProxyConfig holds the fields of Istio's ProxyConfig that the agent uses.
type ProxyConfig struct {
	Metadata      []string // as variables ISTIO_META_NAME=VALUE
	Drain         time.Duration
	Termination   time.Duration
	Concurrency   int
	Discovery     string
	Cluster       string
	AdminPort     int
	WithoutEffect []string // the fields that are set and have no effect here
}

// effective are the fields of a ProxyConfig that have an effect.
var effective = map[protoreflect.Name]bool{
	"drain_duration": true, "termination_drain_duration": true, "concurrency": true, "discovery_address": true,
	"service_cluster": true, "proxy_admin_port": true, "proxy_metadata": true,
}

// ReadProxyConfig reads the variable PROXY_CONFIG, YAML or JSON. Unknown fields are an
// error.
func ReadProxyConfig(text string) (ProxyConfig, error) {
	var c ProxyConfig
	if text == "" {
		return c, nil
	}
	b, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		return c, fmt.Errorf("PROXY_CONFIG: %w", err)
	}
	p := new(meshconfig.ProxyConfig)
	if err := protojson.Unmarshal(b, p); err != nil {
		return c, fmt.Errorf("PROXY_CONFIG: %w", err)
	}
	p.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		if !effective[f.Name()] {
			c.WithoutEffect = append(c.WithoutEffect, f.JSONName())
		}
		return true
	})
	for name, value := range p.GetProxyMetadata() {
		c.Metadata = append(c.Metadata, name+"="+value)
	}
	for _, d := range []interface{ CheckValid() error }{p.GetDrainDuration(), p.GetTerminationDrainDuration()} {
		if m, ok := d.(proto.Message); ok && m.ProtoReflect().IsValid() {
			if err := d.CheckValid(); err != nil {
				return c, fmt.Errorf("PROXY_CONFIG: %w", err)
			}
		}
	}
	c.Drain, c.Termination = p.GetDrainDuration().AsDuration(), p.GetTerminationDrainDuration().AsDuration()
	c.Concurrency, c.Discovery, c.AdminPort = int(p.GetConcurrency().GetValue()), p.GetDiscoveryAddress(), int(p.GetProxyAdminPort())
	c.Cluster = p.GetServiceCluster()
	if c.Drain < 0 || c.Termination < 0 || c.Concurrency < 0 || c.AdminPort < 0 || c.AdminPort > 65535 {
		return c, errors.New("PROXY_CONFIG: a time, a number or a port is out of range")
	}
	return c, nil
}
