// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (n Network) validate(path *field.Path) field.ErrorList {
	rdma, tcp := path.Child("rdma"), path.Child("tcp")
	levels := []string{"LOC", "NVL", "PIX", "PXB", "PHB", "SYS"}
	return slices.Concat(
		number(rdma.Child("gid_index"), n.RDMA.GIDIndex, 0, 255),
		number(rdma.Child("ib_timeout"), n.RDMA.IBTimeout, 0, 31),
		number(rdma.Child("traffic_class"), n.RDMA.TrafficClass, 0, 255),
		number(rdma.Child("service_level"), n.RDMA.ServiceLevel, 0, 15),
		number(rdma.Child("cross_nic"), n.RDMA.CrossNIC, 0, 2),
		number(rdma.Child("min_nchannels"), n.RDMA.MinNChannels, 1, 64),
		invalidIf(n.RDMA.MTU != 0 && (n.RDMA.MTU < 576 || n.RDMA.MTU > 65520), rdma.Child("mtu"), n.RDMA.MTU,
			"want the MTU of the rails' interfaces in bytes, 576 to 65520"),
		oneOf(tcp.Child("p2p_level"), n.TCP.P2PLevel, levels...),
		oneOf(rdma.Child("gdr_level"), n.RDMA.GDRLevel, append([]string{"", "0", "1", "2", "3", "4", "5"}, levels...)...),
		n.RDMA.validateDevices(rdma),
		n.Proxy.validate(path.Child("proxy")),
		wellFormed(path.Child("trusted_ca"), n.TrustedCA, validation.IsDNS1123Subdomain),
	)
}

// validateDevices checks what gives a pod its devices, and what is expected of them.
func (r RDMA) validateDevices(path *field.Path) (errs field.ErrorList) {
	for key, list := range map[string]List{"devices": r.Devices, "interfaces": r.Interfaces} {
		for i, item := range list {
			if slices.Contains(list[:i], item) {
				errs = append(errs, field.Invalid(path.Child(key), strings.Join(list, ","), fmt.Sprintf("names %s twice", item)))
			}
		}
	}
	for i, attachment := range r.Attachments {
		at := path.Child("attachments").Index(i)
		namespace, network, both := strings.Cut(attachment, "/")
		if !both {
			network = attachment
		}
		if both && len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(network)) > 0 {
			errs = append(errs, field.Invalid(at, attachment, "want namespace/name, as in default/eno5np0-network, or the name of one in the "+
				"environment's namespace"))
		} else if slices.Contains(r.Attachments[:i], attachment) {
			errs = append(errs, field.Invalid(at, attachment, "is listed already; list each attachment once"))
		}
	}
	if r.HostNetwork && r.Plugged() {
		errs = append(errs, field.Invalid(path.Child("host_network"), true, "is for host devices: with attachments or resources pods have "+
			"networks of their own; leave out one of the two"))
	}
	if attachments, interfaces := len(r.Attachments), len(r.Interfaces); attachments > 0 && interfaces > 0 && attachments != interfaces {
		errs = append(errs, field.Invalid(path.Child("interfaces"), strings.Join(r.Interfaces, ","),
			fmt.Sprintf("are %d, but each of the %d attachments creates one", interfaces, attachments)))
	}
	for _, resource := range slices.Sorted(maps.Keys(r.Resources)) {
		at := path.Child("resources").Key(resource)
		domain, kind, both := strings.Cut(resource, "/")
		switch {
		case !both || len(validation.IsQualifiedName(resource)) > 0:
			errs = append(errs, field.Invalid(at, resource, "want a resource as a device plugin names it, as in openshift.io/eno5np0rdma"))
		case domain == "nvidia.com" && (strings.HasPrefix(kind, "gpu") || strings.HasPrefix(kind, "mig-")): // it has NICs, too
			errs = append(errs, field.Invalid(at, resource, "gpus.per_node sets the number of GPUs: leave this resource out"))
		case r.Resources[resource] < 1:
			errs = append(errs, field.Invalid(at, r.Resources[resource], "want at least 1"))
		}
	}
	return errs
}

func (p Proxy) validate(path *field.Path) field.ErrorList {
	return slices.Concat(
		proxyURL(path.Child("http"), p.HTTP),
		proxyURL(path.Child("https"), p.HTTPS),
		invalidIf(len(p.NoProxy) > 0 && p.HTTP == "" && p.HTTPS == "", path.Child("no_proxy"), strings.Join(p.NoProxy, ","),
			"exempts from a proxy, but neither http nor https names one"),
	)
}

func proxyURL(path *field.Path, value string) field.ErrorList {
	if value == "" {
		return nil
	}
	parsed, err := url.Parse(value)
	switch {
	case err != nil || parsed.Host == "" || parsed.Scheme != "http" && parsed.Scheme != "https":
		return field.ErrorList{field.Invalid(path, value, "want the proxy's URL, as in http://proxy.example.com:3128")}
	case parsed.User != nil:
		// The value is not repeated: it would end up in logs.
		return field.ErrorList{field.Invalid(path, "", "holds a password or user; a cluster file is no place for them")}
	}
	return nil
}
