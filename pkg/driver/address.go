package driver

import (
	"fmt"
	"path/filepath"
	"strings"
)

const (
	unixPrefix = "unix://"
	// maxPath is what fits into a socket address (sun_path, with its closing zero byte).
	maxPath = 107
)

// CheckAddress returns nil when address can name a CSI socket, otherwise an error that lists the accepted
// forms. It does not look at the file system.
func CheckAddress(address string) error {
	_, err := socketPath(address)
	return err
}

// socketPath returns the path of the socket that address names.
func socketPath(address string) (string, error) {
	path := strings.TrimPrefix(address, unixPrefix)
	if !filepath.IsAbs(path) || strings.ContainsRune(path, 0) {
		return "", fmt.Errorf("CSI address %q is not accepted: give an absolute path (/run/csi/socket) or unix:// and an absolute path (unix:///run/csi/socket)", address)
	}
	if len(path) > maxPath {
		return "", fmt.Errorf("CSI address %q is not accepted: the path of a socket has at most %d bytes, this one has %d", address, maxPath, len(path))
	}
	return path, nil
}
