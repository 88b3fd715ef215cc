// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/ml-dev-env/ml-dev-env/internal/agent/promtext"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

// networkMetrics returns the bytes of the pod's interfaces, and of its RDMA ports, whose traffic the interfaces do not count.
func networkMetrics(root fs.FS) ([]promtext.Metric, error) {
	metric := func(name, help string) promtext.Metric {
		return promtext.Metric{Name: name, Type: promtext.Counter, Help: help}
	}
	received := metric("mlenv_network_receive_bytes_total", "Bytes that a network interface of the pod received, without RDMA.")
	sent := metric("mlenv_network_transmit_bytes_total", "Bytes that a network interface of the pod sent, without RDMA.")
	interfaces, err := readInterfaces(root)
	for _, i := range interfaces[:min(len(interfaces), mostDevices)] {
		received.Add(i.received, "device", i.name)
		sent.Add(i.sent, "device", i.name)
	}
	portReceived := metric("mlenv_rdma_receive_bytes_total", "Bytes that a port of an RDMA device of the pod received.")
	portSent := metric("mlenv_rdma_transmit_bytes_total", "Bytes that a port of an RDMA device of the pod sent.")
	ports := rdma.Traffic(root)
	for _, p := range ports[:min(len(ports), mostDevices)] {
		portReceived.Add(p.Received, "device", p.Device, "port", strconv.Itoa(p.Port))
		portSent.Add(p.Sent, "device", p.Device, "port", strconv.Itoa(p.Port))
	}
	return []promtext.Metric{received, sent, portReceived, portSent}, err
}

type interfaceBytes struct {
	name           string
	received, sent float64
}

// readInterfaces reads the counters of this process's network namespace, except loopback's.
func readInterfaces(root fs.FS) (all []interfaceBytes, err error) {
	const file = "proc/self/net/dev"
	content, err := fs.ReadFile(root, file)
	if err != nil {
		return nil, fmt.Errorf("reading the interfaces' counters: %w", err)
	}
	for line := range strings.Lines(string(content)) {
		name, counters, found := strings.Cut(line, ":")
		if name = strings.TrimSpace(name); !found || name == "lo" {
			continue // the two lines of the heading have no colon
		}
		const received, sent = 0, 8
		fields := strings.Fields(counters)
		if len(fields) <= sent {
			return all, errors.New("reading /" + file + ": interface " + name + " has too few counters")
		}
		i := interfaceBytes{name: name}
		var wrong, alsoWrong error
		i.received, wrong = strconv.ParseFloat(fields[received], 64)
		i.sent, alsoWrong = strconv.ParseFloat(fields[sent], 64)
		if err := cmp.Or(wrong, alsoWrong); err != nil {
			return all, fmt.Errorf("reading /%s: interface %s: %w", file, name, err)
		}
		all = append(all, i)
	}
	return all, nil
}
