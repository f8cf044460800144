package integration

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/controllers/capacity"
	"github.com/csi-sidecars/external-provisioner/pkg/nodelocal"
	"github.com/csi-sidecars/external-provisioner/pkg/segments"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
)

// In node deployment nobody manages the objects of a node that is gone: the sweeper removes them, and no others.
func TestCapacityOfNodesThatAreGone(t *testing.T) {
	t.Parallel()
	s := lateSite(t)
	publishers := map[string]*publisher{}
	for _, zone := range []string{"a", "b"} {
		node := s.name(zone)
		s.node(node, s.zone(zone), s.ns)
		publishers[zone] = s.publishOf(s.ns, memdriver.Config{CapacityBytes: 10 << 30, Topology: s.zone(zone)}, func(cfg *capacity.Config) {
			cfg.Segments = segments.NewFixed(node, &csi.Topology{Segments: s.zone(zone)})
			cfg.Objects = s.objectsOf(s.ns, nodelocal.ManagedBy(wellknown.ManagedByBase, node))
		})
	}
	before := s.becomes(publishers["b"], "zone=a 10Gi", "zone=b 10Gi")
	sweeper, err := capacity.NewSweeper(capacity.SweeperConfig{
		Client: s.clients.Capacity, Metadata: s.clients.Metadata, DriverName: s.ns, Namespace: s.ns, Interval: 50 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	running(t, sweeper.Run)
	publishers["b"].polls(s, 5)
	if diff := cmp.Diff(versions(before), versions(s.published())); diff != "" {
		t.Errorf("objects of nodes that are there (-before +after):\n%s", diff)
	}
	publishers["a"].stop()
	s.dropNode(t.Context(), s.name("a"))
	after := s.becomes(publishers["b"], "zone=b 10Gi")
	if diff := cmp.Diff(versions(before[1:]), versions(after)); diff != "" {
		t.Errorf("the object of the other node (-before +after):\n%s", diff)
	}
}

// Many nodes, two classes, four workers: exactly one create each, and no other write.
func TestCapacityOfManyNodes(t *testing.T) {
	t.Parallel()
	const nodes = 100
	s := lateSite(t)
	second := fixture.Class(s.ns + "-2").Provisioner(s.ns).WaitForFirstConsumer().Obj()
	if _, err := s.clients.Core.StorageV1().StorageClasses().Create(t.Context(), second, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var making sync.WaitGroup
	for worker := range 10 {
		making.Go(func() {
			for n := worker; n < nodes; n += 10 {
				name := fmt.Sprint(n)
				s.node(s.name(name), map[string]string{s.ns + "/zone": fmt.Sprint(n % 3), s.ns + "/host": name}, s.ns)
			}
		})
	}
	p := s.publish() // while nodes still come
	making.Wait()
	eventually(t, "an object for each node and class", func() bool { return len(s.published()) == 2*nodes })
	p.polls(s, 2)
	if posts, puts, deletes := s.writes("POST"), s.writes("PUT"), s.writes("DELETE"); posts != 2*nodes || puts+deletes != 0 {
		t.Errorf("%d creates, %d updates, %d deletes, want %d creates", posts, puts, deletes, 2*nodes)
	}
	seen := map[string]bool{}
	for _, object := range s.published() {
		if line := s.says(object); seen[line] {
			t.Errorf("two objects say %s", line)
		} else {
			seen[line] = true
		}
		if !strings.HasPrefix(object.Name, "csisc-") {
			t.Errorf("object is called %s, want csisc-…", object.Name)
		}
	}
}
