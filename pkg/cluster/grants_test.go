package cluster

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	gatewayv1beta1 "sigs.k8s.io/gateway-api/apis/v1beta1"
	gatewayfake "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned/fake"
	gatewayclient "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned/typed/apis/v1beta1"
)

func TestGrantsThatAreNotWatchedAreAnError(t *testing.T) {
	t.Parallel()
	informers, _ := running(t, InformersConfig{})
	if _, err := informers.Grants("ns"); err == nil || !strings.Contains(err.Error(), "CrossNamespaceVolumeDataSource") {
		t.Errorf("error %v does not name the gate", err)
	}
}

// listing tells the informer that the fake cannot stream a list.
type listing struct {
	gatewayclient.GatewayV1beta1Interface
}

func (listing) IsWatchListSemanticsUnSupported() bool { return true }

// Work begins when it is known which grants there are: a claim that needs one must not fail because it came first.
func TestGrantsAreReadBeforeWorkBegins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gateway := gatewayfake.NewSimpleClientset(&gatewayv1beta1.ReferenceGrant{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "g"}})
		gateway.PrependReactor("list", "referencegrants", func(clienttesting.Action) (bool, runtime.Object, error) {
			time.Sleep(10 * time.Second)
			return false, nil, nil
		})
		informers, err := NewInformers(InformersConfig{Client: fake.NewClientset(), Driver: testDriver, Gateway: listing{gateway.GatewayV1beta1()}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { informers.Run(ctx); close(ended) }()
		defer func() { cancel(); <-ended }()
		if err := informers.WaitForSync(ctx); err != nil {
			t.Fatal(err)
		}
		if grants, err := informers.Grants("ns"); err != nil || len(grants) != 1 {
			t.Errorf("grants %v, %v when work begins, want one", grants, err)
		}
	})
}

// While the API for grants is missing everything else works, it is said now and then, and the grants are there soon
// after the API is.
func TestGrantsComeAliveLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var served atomic.Bool
		gateway := gatewayfake.NewSimpleClientset(
			&gatewayv1beta1.ReferenceGrant{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "g"}},
			&gatewayv1beta1.ReferenceGrant{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "g"}},
		)
		gateway.PrependReactor("list", "referencegrants", func(clienttesting.Action) (bool, runtime.Object, error) {
			if served.Load() {
				return false, nil, nil
			}
			return true, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "referencegrants"}, "")
		})
		informers, err := NewInformers(InformersConfig{Client: fake.NewClientset(), Driver: testDriver, Gateway: listing{gateway.GatewayV1beta1()}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, log := logged(t, 0)
		ctx, cancel := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() { informers.Run(ctx); close(ended) }()
		defer func() { cancel(); <-ended }()
		if err := informers.WaitForSync(ctx); err != nil || !informers.Synced() {
			t.Fatalf("the other caches wait for grants: %v", err)
		}
		if grants, err := informers.Grants("ns"); !apierrors.IsNotFound(err) {
			t.Errorf("grants %v, error %v before anything could be read", grants, err)
		}
		time.Sleep(11 * time.Minute)
		if grants, err := informers.Grants("ns"); !apierrors.IsNotFound(err) {
			t.Errorf("grants %v, error %v, want what the watch fails with", grants, err)
		}
		if got := strings.Count(log(), "ReferenceGrants cannot be read"); got != 3 {
			t.Errorf("said %d times in 11 minutes, want after 30 s and then every 5 minutes:\n%s", got, log())
		}
		for _, want := range []string{"referencegrants.gateway.networking.k8s.io: install its CRD", "CrossNamespaceVolumeDataSource=false"} {
			if !strings.Contains(log(), want) {
				t.Errorf("the log does not mention %q:\n%s", want, log())
			}
		}
		served.Store(true)
		time.Sleep(2 * time.Minute)
		if grants, err := informers.Grants("ns"); err != nil || len(grants) != 1 {
			t.Errorf("grants %v, %v, want one", grants, err)
		}
		if !strings.Contains(log(), "work now") {
			t.Errorf("the log does not say that it works:\n%s", log())
		}
	})
}
