// SPDX-License-Identifier: Apache-2.0

// Package cni is a stand-in for the SR-IOV CNI plugin. The interface that it gives a pod is a macvlan on the NIC's own
// interface. It has the configuration, errors and order of steps of the real plugin
// (k8snetworkplumbingwg/sriov-cni:cmd/sriov, pkg/config). Called as macvlan, it calls the real plugin of that name.
package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/containernetworking/plugins/pkg/ip"
	"github.com/containernetworking/plugins/pkg/ipam"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/rdma"
	"github.com/ml-dev-env/ml-dev-env/test/localcluster/internal/topology"
)

// NodeVariable is the environment variable with the name of the node, for the node's containerd and the plugin that it
// starts.
const NodeVariable = "LOCALCLUSTER_NODE"

// Main runs the plugin.
func Main() {
	node := os.Getenv(NodeVariable)
	p := plugin{node: node, dir: topology.RDMADir(node)}
	state, err := rdma.ReadState(p.dir)
	if err != nil {
		_ = types.NewError(types.ErrInternal, err.Error(), "").Print()
		os.Exit(1)
	}
	p.layout = state.Layout
	add, del := p.add, p.del
	if filepath.Base(os.Args[0]) == Macvlan {
		add, del = p.addMacvlan, p.delMacvlan
	}
	skel.PluginMainFuncs(skel.CNIFuncs{
		Add:   add,
		Del:   del,
		Check: func(*skel.CmdArgs) error { return nil },
	}, version.All, "CNI SR-IOV plugin, a stand-in")
}

// plugin is one call of the plugin, on a node with the devices in dir.
type plugin struct {
	node, dir string
	layout    rdma.Layout
}

// config has the fields of an attachment that the stand-in reads. It ignores settings of virtual functions such as
// spoofchk.
type config struct {
	types.NetConf
	// DeviceID is the function's PCI address, which Multus adds.
	DeviceID string `json:"deviceID"`
}

func load(content []byte) (config, error) {
	var c config
	if err := json.Unmarshal(content, &c); err != nil {
		return c, fmt.Errorf("LoadConf(): failed to load netconf: %w", err)
	}
	if c.DeviceID == "" {
		// This is the real plugin's error if the attachment names no resource, or a resource that the pod does not
		// request.
		return c, errors.New("LoadConf(): VF pci addr is required")
	}
	return c, nil
}

func (p plugin) add(args *skel.CmdArgs) error {
	c, err := load(args.StdinData)
	if err != nil {
		return fmt.Errorf("SRIOV-CNI failed to load netconf: %w", err)
	}
	function, ok := p.layout.FunctionAt(p.node, c.DeviceID)
	if !ok || function.Number == 0 {
		return fmt.Errorf("SRIOV-CNI failed to load netconf: LoadConf(): the device %q is no virtual function of %s", c.DeviceID, p.node)
	}
	netns, err := ns.GetNS(args.Netns)
	if err != nil {
		return fmt.Errorf("failed to open netns %q: %w", args.Netns, err)
	}
	defer func() { _ = netns.Close() }()
	link, err := move(function, netns, args.IfName)
	if err != nil {
		return fmt.Errorf("failed to set up pod interface %q from the device %q: %w", args.IfName, function.NIC.Name, err)
	}
	result, err := p.configure(args, c, netns, link)
	if err != nil {
		return errors.Join(err, remove(args.Netns, args.IfName))
	}
	if err := function.Attach(p.dir, interfaceOf(args, link.Attrs(), result)); err != nil {
		return err
	}
	return types.PrintResult(result, c.CNIVersion)
}

func (p plugin) del(args *skel.CmdArgs) error {
	var c types.NetConf
	if err := json.Unmarshal(args.StdinData, &c); err != nil {
		return err
	}
	if c.IPAM.Type != "" {
		if err := ipam.ExecDel(c.IPAM.Type, args.StdinData); err != nil {
			return err
		}
	}
	return errors.Join(p.detach(args), remove(args.Netns, args.IfName))
}

func (p plugin) detach(args *skel.CmdArgs) error {
	for _, f := range p.layout.Functions(p.node) {
		if err := f.Detach(p.dir, owner(args)); err != nil {
			return err
		}
	}
	return nil
}

// owner identifies one interface of one pod.
func owner(args *skel.CmdArgs) string { return args.ContainerID + " " + args.IfName }

func interfaceOf(args *skel.CmdArgs, link *netlink.LinkAttrs, result *current.Result) rdma.Interface {
	i := rdma.Interface{Owner: owner(args), Name: args.IfName, MAC: link.HardwareAddr, MTU: link.MTU}
	for _, address := range result.IPs {
		if a, ok := netip.AddrFromSlice(address.Address.IP); ok {
			i.Addresses = append(i.Addresses, a.Unmap())
		}
	}
	return i
}

// move creates the function's interface in the pod.
func move(function rdma.Function, netns ns.NetNS, name string) (netlink.Link, error) {
	physical, err := netlink.LinkByName(function.NIC.Name)
	if err != nil {
		return nil, err
	}
	mac, err := net.ParseMAC(function.MAC())
	if err != nil {
		return nil, err
	}
	temporary, err := ip.RandomVethName()
	if err != nil {
		return nil, err
	}
	attributes := netlink.NewLinkAttrs()
	attributes.Name, attributes.ParentIndex, attributes.MTU = temporary, physical.Attrs().Index, physical.Attrs().MTU
	attributes.HardwareAddr, attributes.Namespace = mac, netlink.NsFd(int(netns.Fd()))
	if err := netlink.LinkAdd(&netlink.Macvlan{LinkAttrs: attributes, Mode: netlink.MACVLAN_MODE_BRIDGE}); err != nil {
		return nil, err
	}
	var link netlink.Link
	err = netns.Do(func(ns.NetNS) error {
		if err := ip.RenameLink(temporary, name); err != nil {
			return errors.Join(err, ip.DelLinkByName(temporary))
		}
		link, err = netlink.LinkByName(name)
		return err
	})
	return link, err
}

// configure gives the interface the addresses that the IPAM plugin returns.
func (p plugin) configure(args *skel.CmdArgs, c config, netns ns.NetNS, link netlink.Link) (*current.Result, error) {
	result := &current.Result{CNIVersion: current.ImplementedSpecVersion}
	if c.IPAM.Type != "" {
		answer, err := ipam.ExecAdd(c.IPAM.Type, args.StdinData)
		if err != nil {
			return nil, fmt.Errorf("failed to set up IPAM plugin type %q from the device %q: %w", c.IPAM.Type, c.DeviceID, err)
		}
		if result, err = current.NewResultFromResult(answer); err != nil {
			return nil, err
		}
		if len(result.IPs) == 0 {
			return nil, errors.New("IPAM plugin returned missing IP config")
		}
	}
	result.Interfaces = []*current.Interface{{Name: args.IfName, Mac: link.Attrs().HardwareAddr.String(), Sandbox: netns.Path()}}
	for _, address := range result.IPs {
		address.Interface = current.Int(0)
	}
	err := netns.Do(func(ns.NetNS) error { return ipam.ConfigureIface(args.IfName, result) })
	if err != nil && c.IPAM.Type != "" {
		err = errors.Join(err, ipam.ExecDel(c.IPAM.Type, args.StdinData))
	}
	return result, err
}

// remove deletes the interface, if it and its pod exist.
func remove(netns, name string) error {
	if netns == "" {
		return nil
	}
	err := ns.WithNetNSPath(netns, func(ns.NetNS) error { return ip.DelLinkByName(name) })
	var gone ns.NSPathNotExistErr
	if errors.Is(err, ip.ErrLinkNotFound) || errors.As(err, &gone) {
		return nil
	}
	return err
}
