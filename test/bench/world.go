package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

const (
	driverName  = "bench.csi.example.com"
	className   = "bench"
	otherClass  = "other"
	namespace   = "default"
	topologyKey = "topology.bench.example.com/node"
	// writers is how many objects are written at once.
	writers = 16
)

// world is the control plane with what is on it besides the volumes that are measured.
type world struct {
	cluster        *cluster.Cluster
	proxy          *proxy
	topology       bool
	nodes, foreign int // how many there are
}

func (w *world) createClasses(ctx context.Context) error {
	for name, provisioner := range map[string]string{className: driverName, otherClass: "other.csi.example.com"} {
		class := fixture.Class(name).Provisioner(provisioner).Obj()
		if _, err := w.cluster.Client().StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// claim returns a claim as users write them: with a note.
func claim(name, class string) *corev1.PersistentVolumeClaim {
	return fixture.Claim(name).Class(class).Annotation("example.com/note", strings.Repeat("x", 300)).Obj()
}

func (w *world) growForeign(ctx context.Context, size int) error {
	first := w.foreign
	w.foreign = size
	return parallel(size-first, func(i int) error {
		_, err := w.cluster.Client().CoreV1().PersistentVolumeClaims(namespace).Create(ctx, claim(fmt.Sprintf("foreign-%d", first+i), otherClass), metav1.CreateOptions{})
		return err
	})
}

func nodeName(i int) string { return fmt.Sprintf("node-%d", i) }

func (w *world) growNodes(ctx context.Context, size int) error {
	first := w.nodes
	w.nodes = size
	return parallel(size-first, func(i int) error { return w.createNode(ctx, nodeName(first+i)) })
}

// createNode makes a node with the labels and images of a real one.
func (w *world) createNode(ctx context.Context, name string) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{topologyKey: name}}}
	for i := range 25 {
		node.Labels[fmt.Sprintf("example.com/label-%d", i)] = fmt.Sprintf("value-%d-of-%s", i, name)
	}
	nodes := w.cluster.Client().CoreV1().Nodes()
	made, err := nodes.Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	for i := range 40 {
		image := fmt.Sprintf("registry.example.com/team/image-%d", i)
		made.Status.Images = append(made.Status.Images, corev1.ContainerImage{
			Names: []string{image + "@sha256:" + strings.Repeat("0123456789abcdef", 4), image + ":v1.2.3"}, SizeBytes: 1 << 20,
		})
	}
	if _, err := nodes.UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
		return err
	}
	csiNode := &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: driverName, NodeID: name, TopologyKeys: []string{topologyKey}}}},
	}
	_, err = w.cluster.Client().StorageV1().CSINodes().Create(ctx, csiNode, metav1.CreateOptions{})
	return err
}

// parallel calls do for 0 to n-1, some at a time; it returns the first error, after which no more are begun.
func parallel(n int, do func(i int) error) error {
	var (
		next    atomic.Int64
		failure atomic.Pointer[error]
		running sync.WaitGroup
	)
	for range min(n, writers) {
		running.Go(func() {
			for failure.Load() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := do(i); err != nil {
					failure.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	running.Wait()
	if err := failure.Load(); err != nil {
		return *err
	}
	return nil
}
