// SPDX-License-Identifier: Apache-2.0

// Package perftest is a stand-in for perftest's ib_write_bw. Without verbs, it sends the data by TCP on the device's
// interface, at a four-hundredth of the port's rate: 1 Gb/s for 400. Options, output, errors and exit codes are those
// of the real program (4.5).
package perftest

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	// slowdown is the factor between the port's rate and the stand-in's, which keeps the load on the machine low.
	slowdown = 400
	// messageSize is the real program's default.
	messageSize = 65536
	// reaching is the time within which a peer must answer on the rail.
	reaching = 3 * time.Second

	line = "---------------------------------------------------------------------------------------\n"
)

type options struct {
	device, host              string
	ibPort, gid, port, length int
}

// Run runs the program with the tree of the devices in root. It returns the exit code.
func Run(args []string, root string, stdout, stderr io.Writer) int {
	err := run(args, root, stdout)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

// failure is the text that the real program prints before it exits with 1.
type failure string

func (f failure) Error() string { return string(f) }

func failuref(format string, args ...any) failure { return failure(fmt.Sprintf(format, args...)) }

func run(args []string, root string, out io.Writer) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	p, err := openPort(root, o)
	if err != nil {
		return err
	}
	if o.host == "" {
		return serve(o, p, out)
	}
	return write(o, p, out)
}

func parse(args []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("ib_write_bw", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&o.device, "d", "", "")
	flags.IntVar(&o.ibPort, "i", 1, "")
	flags.IntVar(&o.gid, "x", 0, "")
	flags.IntVar(&o.port, "p", 18515, "")
	flags.IntVar(&o.length, "D", 5, "")
	flags.Bool("F", false, "")
	gigabits := flags.Bool("report_gbits", false, "")
	// TCP does not use these options.
	flags.Int("tclass", 0, "")
	flags.Int("S", 0, "")
	if flags.Parse(args) != nil || flags.NArg() > 1 || !*gigabits {
		return o, failure(" Invalid Command or flag.\n (a stand-in, which knows few)")
	}
	o.host = flags.Arg(0)
	return o, nil
}

// port describes a device's port as in the tree.
type port struct {
	netdev, layer string
	address       netip.Addr
	// rate is in bits per second.
	rate float64
}

func openPort(root string, o options) (port, error) {
	dir := filepath.Join(root, "sys/class/infiniband", o.device, "ports", strconv.Itoa(o.ibPort))
	read := func(name string) string {
		content, _ := os.ReadFile(filepath.Join(dir, name))
		return strings.TrimSpace(string(content))
	}
	if _, err := os.Stat(filepath.Dir(dir)); err != nil || o.device == "" {
		return port{}, failuref(" IB device %s not found\n Unable to find the Infiniband/RoCE device", o.device)
	}
	if !strings.HasSuffix(read("state"), "ACTIVE") {
		return port{}, failuref(" Port number %d state is Down\n Couldn't set the link layer\n Couldn't get context for the device", o.ibPort)
	}
	gid, _ := netip.ParseAddr(read("gids/" + strconv.Itoa(o.gid)))
	p := port{netdev: read("gid_attrs/ndevs/" + strconv.Itoa(o.gid)), layer: read("link_layer"), address: gid.Unmap()}
	if !p.address.Is4() {
		return port{}, failure("Failed to modify QP 295 to RTR\n Unable to Connect the HCA's through the link")
	}
	gigabits, _ := strconv.ParseFloat(strings.Fields(read("rate") + " 0")[0], 64)
	p.rate = gigabits * 1e9
	return p, nil
}

// header prints the header of the result, after the programs have exchanged their addresses.
func header(o options, p, peer port, out io.Writer) {
	fmt.Fprint(out, line)
	fmt.Fprintf(out, "                    RDMA_Write BW Test\n (a stand-in: TCP on %s, at 1/%d of the port's rate)\n", p.netdev, slowdown)
	fmt.Fprintf(out, " Dual-port       : OFF\t\tDevice         : %s\n Number of qps   : 1\t\tTransport type : IB\n Connection type : "+
		"RC\t\tUsing SRQ      : OFF\n", o.device)
	fmt.Fprintf(out, " Link type       : %s\n GID index       : %d\n rdma_cm QPs\t : OFF\n Data ex. method : Ethernet\n%s", p.layer, o.gid,
		line)
	for _, side := range []struct {
		name    string
		address netip.Addr
	}{{"local", p.address}, {"remote", peer.address}} {
		b := side.address.As4()
		fmt.Fprintf(out, " %s address: LID 0000 QPN 0x0127 PSN 0x000000 RKey 0x000000 VAddr 0x00000000000000\n GID: "+
			"00:00:00:00:00:00:00:00:00:00:255:255:%02d:%02d:%02d:%02d\n", side.name, b[0], b[1], b[2], b[3])
	}
	fmt.Fprintf(out, "%s #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n", line)
}

// row prints the result from the number of received bytes and the time.
func row(arrived int64, in time.Duration, out io.Writer) {
	messages := float64(arrived) / messageSize
	fmt.Fprintf(out, " %-7d    %-10d       %-7.2f            %-7.2f\t\t   %-7.6f\n%s", messageSize, int64(messages), 0.0,
		float64(arrived)*8/float64(in.Nanoseconds()), messages/in.Seconds()/1e6, line)
}

// result is the format of the server's report to the client at the end.
const result = "%d %d\n" // bytes, nanoseconds

// serve receives from one client. Both sides exchange the addresses of their GIDs on the port of the options, by TCP
// like the real programs.
func serve(o options, p port, out io.Writer) error {
	fmt.Fprint(out, "\n************************************\n* Waiting for client to connect... *\n************************************\n")
	listener, err := net.Listen("tcp", ":"+strconv.Itoa(o.port))
	if err != nil {
		return failuref("Couldn't listen to port %d", o.port)
	}
	control, err := listener.Accept()
	_ = listener.Close()
	if err != nil {
		return err
	}
	defer control.Close()
	rail, err := net.Listen("tcp", netip.AddrPortFrom(p.address, 0).String())
	if err != nil {
		return noRail()
	}
	defer rail.Close()
	var peer port
	var client string
	fmt.Fprintln(control, rail.Addr())
	if _, err := fmt.Fscanln(control, &client); err != nil {
		return failure("ethernet_read_keys: Couldn't read remote address")
	}
	if peer.address, err = netip.ParseAddr(client); err != nil {
		return err
	}
	header(o, p, peer, out)
	_ = rail.(*net.TCPListener).SetDeadline(time.Now().Add(reaching))
	began := time.Now() // not after, because the other side sends from its connection on
	data, err := rail.Accept()
	if err != nil {
		return noRail()
	}
	defer data.Close()
	arrived, err := io.Copy(io.Discard, bufio.NewReaderSize(data, messageSize))
	if err != nil {
		return noRail()
	}
	took := time.Since(began)
	row(arrived, took, out)
	_, err = fmt.Fprintf(control, result, arrived, took.Nanoseconds())
	return err
}

// write sends to the server on a host.
func write(o options, p port, out io.Writer) error {
	control, err := net.DialTimeout("tcp", net.JoinHostPort(o.host, strconv.Itoa(o.port)), reaching)
	if err != nil {
		return failuref("Couldn't connect to %s:%d\nUnable to init the socket connection", o.host, o.port)
	}
	defer control.Close()
	var server string
	fmt.Fprintln(control, p.address)
	if _, err := fmt.Fscanln(control, &server); err != nil {
		return failure("ethernet_read_keys: Couldn't read remote address")
	}
	at, err := netip.ParseAddrPort(server)
	if err != nil {
		return err
	}
	header(o, p, port{address: at.Addr()}, out)
	dialer := net.Dialer{Timeout: reaching, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(p.address, 0))}
	data, err := dialer.Dial("tcp", server)
	if err != nil {
		return noRail()
	}
	if err := pace(data, p.rate/slowdown, time.Duration(o.length)*time.Second); err != nil {
		return noRail()
	}
	var arrived, took int64
	if _, err := fmt.Fscanf(control, result, &arrived, &took); err != nil || took <= 0 {
		return failure("ethernet_read_data: Couldn't read reports")
	}
	row(arrived, time.Duration(took), out)
	return nil
}

// pace sends messages for a duration, at a rate in bits per second, and closes the connection.
func pace(data net.Conn, rate float64, length time.Duration) error {
	message := make([]byte, messageSize)
	began := time.Now()
	for sent := 0.0; time.Since(began) < length; sent += messageSize * 8 {
		time.Sleep(time.Duration(sent/rate*float64(time.Second)) - time.Since(began))
		if err := data.SetWriteDeadline(time.Now().Add(reaching)); err != nil {
			return err
		}
		if _, err := data.Write(message); err != nil {
			return err
		}
	}
	return data.Close()
}

// noRail returns the error that the real program prints when the retries of a queue pair end without an answer.
func noRail() error {
	return failure(" Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81")
}
