// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"encoding/json"
	"net"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
)

// Macvlan is the plugin's name as macvlan, and RealMacvlan the name of the real plugin in the same folder.
const (
	Macvlan     = "macvlan"
	RealMacvlan = "real-macvlan"
)

// addMacvlan adds the interface, and then does what the kernel does: it adds GIDs of the interface's addresses to the card below it.
func (p plugin) addMacvlan(args *skel.CmdArgs) error {
	var c struct {
		types.NetConf
		Master string `json:"master"`
	}
	if err := json.Unmarshal(args.StdinData, &c); err != nil {
		return err
	}
	answer, err := invoke.DelegateAdd(context.Background(), RealMacvlan, args.StdinData, nil)
	if err != nil {
		return err
	}
	result, err := current.NewResultFromResult(answer)
	if err != nil {
		return err
	}
	for _, f := range p.layout.Functions(p.node) {
		if f.NIC.Name != c.Master || f.Number > 0 {
			continue
		}
		mac, err := net.ParseMAC(result.Interfaces[0].Mac)
		if err != nil {
			return err
		}
		if err := f.Attach(p.dir, interfaceOf(args, &netlink.LinkAttrs{HardwareAddr: mac}, result)); err != nil {
			return err
		}
	}
	return types.PrintResult(answer, c.CNIVersion)
}

func (p plugin) delMacvlan(args *skel.CmdArgs) error {
	if err := p.detach(args); err != nil {
		return err
	}
	return invoke.DelegateDel(context.Background(), RealMacvlan, args.StdinData, nil)
}
