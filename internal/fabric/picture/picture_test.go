package picture

import (
	"bytes"
	"encoding/xml"
	"errors"
	"image/png"
	"io"
	"os"
	"testing"
	"time"

	"github.com/ml-dev-env/ml-dev-env/internal/agent"
	"github.com/ml-dev-env/ml-dev-env/internal/fabric"
	"github.com/ml-dev-env/ml-dev-env/internal/rdma"
)

func TestFiles(t *testing.T) {
	r := fabric.Report{Verdict: fabric.Pass, Transport: "RDMA with GPUDirect", Expected: 194 * rdma.GBps, Rails: []fabric.Rail{
		{Name: "net1", Bandwidth: 48 * rdma.GBps, Expected: 48 * rdma.GBps}, {Name: "net2", Bandwidth: 12 * rdma.GBps, Expected: 48 * rdma.GBps}}}
	for _, operation := range []fabric.Operation{fabric.AllReduce, fabric.Broadcast} {
		for i, size := range []agent.Bytes{8, 1 << 10, 1 << 20, 128 << 20, 1 << 30} {
			r.Measurements = append(r.Measurements, fabric.Measurement{Operation: operation, Scope: fabric.World, Bytes: size, Ranks: 8,
				Time: 20*time.Microsecond + time.Duration(size)/(100+time.Duration(i))})
		}
	}
	files, err := Files(r)
	if err != nil {
		t.Fatal(err)
	}
	picture, err := png.Decode(bytes.NewReader(files[agent.FabricPNG]))
	if err != nil || picture.Bounds().Dx() < 400 || picture.Bounds().Dy() <= picture.Bounds().Dx() {
		t.Errorf("PNG: %v, %v; want two pictures one above the other", picture.Bounds(), err)
	}
	decoder := xml.NewDecoder(bytes.NewReader(files[agent.FabricSVG]))
	elements := 0
	for ; ; elements++ {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("SVG: %v", err)
		}
	}
	if elements < 50 {
		t.Errorf("SVG: %d elements, want a picture", elements)
	}
	for _, text := range []string{"expected", "all_reduce", "net2", "1.1 GB"} {
		if !bytes.Contains(files[agent.FabricSVG], []byte(text)) {
			t.Errorf("SVG: no %q in it", text)
		}
	}
	// They are in a ConfigMap with the rest of the receipt.
	const most = 150 << 10
	for name, content := range files {
		if len(content) > most {
			t.Errorf("%s has %d bytes, want at most %d", name, len(content), most)
		}
		if dir := os.Getenv("PICTURES"); dir != "" {
			if err := os.WriteFile(dir+"/"+name, content, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	if files, err := Files(fabric.Report{}); len(files) > 0 || err != nil {
		t.Errorf("nothing measured: %d files, %v; want none", len(files), err)
	}
}
