package operations

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
)

// leaseOf is a Lease as the instance of a node makes it; "" for central mode.
func leaseOf(driver, node string) *coordinationv1.Lease {
	n := names{lease: driver, driver: driver, node: node}
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "driver", Name: n.of(0), Labels: n.labels(), UID: "uid"}}
}

func nodeNamed(name string) *metav1.PartialObjectMetadata {
	node := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name}}
	node.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	return node
}

// The Leases of a node that has been gone for two sweeps are deleted, and no others.
func TestSweeper(t *testing.T) {
	t.Parallel()
	lost, here := leaseOf("ex.io", "lost"), leaseOf("ex.io", "here")
	for name, tc := range map[string]struct {
		leases []*coordinationv1.Lease
		nodes  []runtime.Object
		play   func(nodes *metadatafake.FakeMetadataClient)
		want   []string // that are there after half an hour
	}{
		"of a node that is gone": {[]*coordinationv1.Lease{lost, here}, []runtime.Object{nodeNamed("here")}, nil, []string{here.Name}},
		"of central mode, and of other drivers": {
			[]*coordinationv1.Lease{leaseOf("ex.io", ""), leaseOf("other", "lost")}, []runtime.Object{nodeNamed("here")}, nil,
			[]string{leaseOf("ex.io", "").Name, leaseOf("other", "lost").Name},
		},
		"while nodes cannot be read": {[]*coordinationv1.Lease{lost}, []runtime.Object{nodeNamed("here")}, func(nodes *metadatafake.FakeMetadataClient) {
			nodes.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("etcd") })
		}, []string{lost.Name}},
		"in a cluster without nodes": {[]*coordinationv1.Lease{lost}, nil, nil, []string{lost.Name}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				scheme := metadatafake.NewTestScheme()
				_ = metav1.AddMetaToScheme(scheme)
				nodes := metadatafake.NewSimpleMetadataClient(scheme, tc.nodes...)
				if tc.play != nil {
					tc.play(nodes)
				}
				client := fake.NewClientset()
				for _, lease := range tc.leases {
					if err := client.Tracker().Add(lease); err != nil {
						t.Fatal(err)
					}
				}
				leases := client.CoordinationV1().Leases("driver")
				s, err := NewSweeper(SweeperConfig{Leases: leases, Nodes: nodes, Driver: "ex.io"})
				if err != nil {
					t.Fatal(err)
				}
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- s.Run(ctx, t.Context()) }()
				left := func() (names []string) {
					list, err := leases.List(t.Context(), metav1.ListOptions{})
					if err != nil {
						t.Fatal(err)
					}
					for _, lease := range list.Items {
						names = append(names, lease.Name)
					}
					return names
				}
				time.Sleep(defaultSweepEvery - time.Second)
				if got := left(); len(got) != len(tc.leases) {
					t.Errorf("left after one sweep: %v", got)
				}
				time.Sleep(30 * time.Minute)
				if got := left(); !slices.Equal(got, slices.Sorted(slices.Values(tc.want))) {
					t.Errorf("left: %v, want %v", got, tc.want)
				}
				stop()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A node that comes back between two sweeps keeps its Leases.
func TestSweeperForgetsANodeThatIsBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		there := false
		nodes := metadatafake.NewSimpleMetadataClient(metadatafake.NewTestScheme())
		nodes.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			list := &metav1.List{}
			list.Items = append(list.Items, runtime.RawExtension{Object: nodeNamed("other")})
			if there = !there; !there {
				list.Items = append(list.Items, runtime.RawExtension{Object: nodeNamed("lost")})
			}
			return true, list, nil
		})
		client := fake.NewClientset(leaseOf("ex.io", "lost"))
		s, err := NewSweeper(SweeperConfig{Leases: client.CoordinationV1().Leases("driver"), Nodes: nodes, Driver: "ex.io"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		if err := s.Run(ctx, t.Context()); err != nil {
			t.Fatal(err)
		}
		if list, err := client.CoordinationV1().Leases("driver").List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
			t.Errorf("the Lease is gone (%v)", err)
		}
	})
}
