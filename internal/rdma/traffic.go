// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"io/fs"
	"path"
	"strconv"
)

// PortTraffic is what a port of an RDMA device has received and sent since its driver was loaded, in bytes.
type PortTraffic struct {
	Device         string
	Port           int
	Received, Sent float64
}

// Traffic reads the counters of the devices whose files are in the container. A port without counters is not among them. root is as
// for Options.
func Traffic(root fs.FS) (all []PortTraffic) {
	d := detector{tree: tree{root}}
	for _, device := range d.listNames(classInfiniBand) {
		if d.uverbs(device) == "" {
			continue
		}
		for _, number := range d.listNames(classInfiniBand, device, "ports") {
			port, err := strconv.Atoi(number)
			counters := path.Join(classInfiniBand, device, "ports", number, "counters")
			received, receivedErr := strconv.ParseFloat(d.readText(counters, "port_rcv_data"), 64)
			sent, sentErr := strconv.ParseFloat(d.readText(counters, "port_xmit_data"), 64)
			if err != nil || receivedErr != nil || sentErr != nil {
				continue
			}
			// The InfiniBand specification counts in units of four octets.
			const unit = 4
			all = append(all, PortTraffic{Device: device, Port: port, Received: unit * received, Sent: unit * sent})
		}
	}
	return all
}
