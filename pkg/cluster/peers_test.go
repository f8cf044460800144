package cluster

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func csiNode(name string, drivers ...string) *storagev1.CSINode {
	node := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"a": "b"}}}
	for _, driver := range drivers {
		node.Spec.Drivers = append(node.Spec.Drivers, storagev1.CSINodeDriver{Name: driver, NodeID: name, TopologyKeys: []string{"host"}})
	}
	return node
}

// inPeers runs the nodes of the driver in a bubble, over a client that answers as react says.
func inPeers(t *testing.T, react clienttesting.ReactionFunc, test func(*testing.T, *DriverNodes, *fake.Clientset)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(csiNode("a", "other.test", testDriver), csiNode("b", "other.test"), csiNode("c", testDriver), csiNode("d"))
		if react != nil {
			client.PrependReactor("list", "csinodes", react)
		}
		nodes, err := NewDriverNodes(client, testDriver)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() { nodes.Run(ctx); close(ended) }()
		test(t, nodes, client)
		cancel()
		<-ended
		time.Sleep(2 * peersWithin) // what the client was asked for has ended, too
	})
}

func (n *DriverNodes) sorted() []string { return slices.Sorted(slices.Values(n.Nodes())) }

func TestNodesOfADriver(t *testing.T) {
	inPeers(t, nil, func(t *testing.T, nodes *DriverNodes, client *fake.Clientset) {
		time.Sleep(time.Hour)
		if got := len(client.Actions()); got != 0 {
			t.Fatalf("%d requests before anybody asked: %v", got, client.Actions())
		}
		if nodes.Ready() || nodes.Nodes() != nil {
			t.Errorf("there is an answer before one was read: %v", nodes.Nodes())
		}
		time.Sleep(time.Second)
		if got, want := nodes.sorted(), []string{"a", "c"}; !nodes.Ready() || !slices.Equal(got, want) {
			t.Errorf("ready %t, nodes %q, want %q", nodes.Ready(), got, want)
		}
		if _, err := client.StorageV1().CSINodes().Update(t.Context(), csiNode("d", testDriver), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := client.StorageV1().CSINodes().Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got, want := nodes.sorted(), []string{"c", "d"}; !slices.Equal(got, want) {
			t.Errorf("after the driver moved: nodes %q, want %q", got, want)
		}
	})
}

// Nobody waits for nodes that cannot be read: without the right, and from an API server that does not answer.
func TestNodesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	t.Run("forbidden", func(t *testing.T) {
		refuse := func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("forbidden") }
		inPeers(t, refuse, func(t *testing.T, nodes *DriverNodes, _ *fake.Clientset) {
			nodes.Ready()
			synctest.Wait()
			if !nodes.Ready() || nodes.Nodes() != nil {
				t.Errorf("ready %t, nodes %q, want none, at once", nodes.Ready(), nodes.Nodes())
			}
		})
	})
	t.Run("no answer", func(t *testing.T) {
		silent := func(clienttesting.Action) (bool, runtime.Object, error) {
			time.Sleep(2 * peersWithin)
			return true, nil, errors.New("no answer")
		}
		inPeers(t, silent, func(t *testing.T, nodes *DriverNodes, _ *fake.Clientset) {
			for range 2 { // asking again does not make it longer
				if nodes.Ready() {
					t.Fatal("ready before there is an answer")
				}
				time.Sleep(peersWithin / 2)
			}
			if !nodes.Ready() || nodes.Nodes() != nil {
				t.Errorf("ready %t, nodes %q, want none after %s", nodes.Ready(), nodes.Nodes(), peersWithin)
			}
		})
	})
}
