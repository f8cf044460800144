package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

// crdFiles are the definitions that data sources need: module → files in it.
var crdFiles = []struct {
	module string
	files  []string
}{
	{"github.com/kubernetes-csi/external-snapshotter/client/v8", []string{
		"config/crd/snapshot.storage.k8s.io_volumesnapshotclasses.yaml",
		"config/crd/snapshot.storage.k8s.io_volumesnapshotcontents.yaml",
		"config/crd/snapshot.storage.k8s.io_volumesnapshots.yaml",
	}},
	{"sigs.k8s.io/gateway-api", []string{
		"config/crd/standard/gateway.networking.k8s.io_referencegrants.yaml",
	}},
}

var crdResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// InstallCRDs creates the definitions of VolumeSnapshot, VolumeSnapshotContent, VolumeSnapshotClass and
// ReferenceGrant, as the modules that this repository builds with ship them, and waits until they are served.
// Those that are there stay as they are.
func (c *Cluster) InstallCRDs(ctx context.Context) error {
	client, err := dynamic.NewForConfig(c.admin)
	if err != nil {
		return fmt.Errorf("install CRDs: %w", err)
	}
	var names []string
	for _, group := range crdFiles {
		dir, err := moduleDir(ctx, group.module)
		if err != nil {
			return fmt.Errorf("install CRDs: %w", err)
		}
		for _, file := range group.files {
			name, err := createCRD(ctx, client, filepath.Join(dir, file))
			if err != nil {
				return fmt.Errorf("install CRD %s of %s: %w", file, group.module, err)
			}
			names = append(names, name)
		}
	}
	for _, name := range names {
		if err := waitEstablished(ctx, client, name); err != nil {
			return fmt.Errorf("install CRDs: %w", err)
		}
	}
	return nil
}

func createCRD(ctx context.Context, client dynamic.Interface, file string) (name string, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	crd := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(text, &crd.Object); err != nil {
		return "", err
	}
	_, err = client.Resource(crdResource).Create(ctx, crd, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return "", err
	}
	return crd.GetName(), nil
}

// waitEstablished waits until the API server serves the kind.
func waitEstablished(ctx context.Context, client dynamic.Interface, name string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Second, errors.New("30 seconds have passed"))
	defer cancel()
	for {
		crd, err := client.Resource(crdResource).Get(ctx, name, metav1.GetOptions{})
		if err == nil && hasTrueCondition(crd, "Established") {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not established: %w", name, errors.Join(context.Cause(ctx), err))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func hasTrueCondition(object *unstructured.Unstructured, kind string) bool {
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions") // A broken list has no condition.
	for _, condition := range conditions {
		fields, isMap := condition.(map[string]any)
		if isMap && fields["type"] == kind && fields["status"] == "True" {
			return true
		}
	}
	return false
}

// moduleDir finds the sources of a module that this repository needs, in the module cache.
func moduleDir(ctx context.Context, module string) (string, error) {
	root, err := RepoRoot()
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module)
	cmd.Dir = root
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("find module %s: %w: %s", module, err, strings.TrimSpace(stderr.String()))
	}
	dir := strings.TrimSpace(string(out))
	if dir == "" {
		return "", fmt.Errorf("module %s is not in the module cache: run `go mod download %s`", module, module)
	}
	return dir, nil
}
