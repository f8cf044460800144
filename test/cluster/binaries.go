package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// BinDirVariable is the environment variable that names the folder with the control plane's binaries.
const BinDirVariable = "CLUSTER_BIN"

const (
	etcdBinary              = "etcd"
	apiServerBinary         = "kube-apiserver"
	controllerManagerBinary = "kube-controller-manager"
	schedulerBinary         = "kube-scheduler"
)

// RepoRoot finds the repository by walking up from the working directory.
func RepoRoot() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the repository: %w", err)
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(text), "module github.com/csi-sidecars/external-provisioner\n") {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("find the repository: no go.mod of it at or above %s", start)
		}
	}
}

// findBinaries returns the folder that has all wanted binaries: dir if given, else what $CLUSTER_BIN names, else
// bin/cluster of the repository.
func findBinaries(dir string, want ...string) (string, error) {
	if dir == "" {
		dir = os.Getenv(BinDirVariable)
	}
	if dir == "" {
		root, err := RepoRoot()
		if err != nil {
			return "", fmt.Errorf("%w; set %s to the folder with the control plane's binaries", err, BinDirVariable)
		}
		dir = filepath.Join(root, "bin", "cluster")
	}
	var missing []string
	for _, name := range want {
		if _, err := os.Stat(filepath.Join(dir, name)); errors.Is(err, os.ErrNotExist) {
			missing = append(missing, name)
		} else if err != nil {
			return "", fmt.Errorf("look for %s: %w", name, err)
		}
	}
	if len(missing) > 0 {
		return "", fmt.Errorf("no %s in %s: run `make cluster-binaries`, or set %s", strings.Join(missing, ", "), dir, BinDirVariable)
	}
	return dir, nil
}
