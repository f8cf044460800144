package sidecar

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/csi-sidecars/external-provisioner/test/cluster"
)

// BinaryVariable is the environment variable that names a binary to test in place of the one that is built.
const BinaryVariable = "CSI_PROVISIONER"

// Version is what the built binary calls itself.
const Version = "v0.0.0-test"

// built is the folder of the binary; "" while there is none. Written by build, read after all tests.
var built string

var build = sync.OnceValues(func() (string, error) {
	if given := os.Getenv(BinaryVariable); given != "" {
		return filepath.Abs(given)
	}
	root, err := cluster.RepoRoot()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "csi-provisioner-")
	if err != nil {
		return "", err
	}
	built = dir
	binary := filepath.Join(dir, "csi-provisioner")
	args := slices.Concat([]string{"build", "-tags=grpcnotrace"}, buildFlags,
		[]string{"-ldflags=-X main.version=" + Version, "-o", binary, "./cmd/csi-provisioner"})
	command := exec.Command("go", args...)
	command.Dir = root
	if out, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the sidecar: %w\n%s", err, out)
	}
	return binary, nil
})

// Binary returns the file of the program under test. The first call builds it, with the race detector when the
// tests have it.
func Binary(tb testing.TB) string {
	tb.Helper()
	binary, err := build()
	if err != nil {
		tb.Fatal(err)
	}
	return binary
}

// Main is for TestMain: it runs the tests with run and removes what Binary has built.
func Main(run func() int) int {
	code := run()
	if built != "" {
		_ = os.RemoveAll(built) // A leftover in the temporary folder harms nobody.
	}
	return code
}
