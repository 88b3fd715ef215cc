package bundle

import (
	"bytes"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"

	mozilla "golang.org/x/crypto/x509roots/fallback/bundle"
)

// HostRootsFile is where Debian and its relatives keep the certificate authorities.
const HostRootsFile = "/etc/ssl/certs/ca-certificates.crt"

// HostRoots are the certificate authorities of this machine as PEM, or nil if it keeps them elsewhere.
func HostRoots() ([]byte, error) {
	roots, err := os.ReadFile(HostRootsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return roots, err
}

// MozillaRoots are the certificate authorities of Mozilla's list as PEM, the same on any machine. It omits authorities
// that are trusted for older certificates only, because PEM cannot express that.
func MozillaRoots() ([]byte, error) {
	var all bytes.Buffer
	for root := range mozilla.Roots() {
		if root.Constraint != nil {
			continue
		}
		if err := pem.Encode(&all, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return nil, err
		}
	}
	return all.Bytes(), nil
}
