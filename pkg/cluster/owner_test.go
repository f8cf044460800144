package cluster

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	fakediscovery "k8s.io/client-go/discovery/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
)

func partial(apiVersion, kind, name string, owners ...metav1.OwnerReference) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: apiVersion, Kind: kind},
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: uidOf("ns", name), OwnerReferences: owners},
	}
}

func controlledBy(apiVersion, kind, name string) metav1.OwnerReference {
	yes, block := true, true
	return metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: name, UID: uidOf("ns", name), Controller: &yes, BlockOwnerDeletion: &block}
}

// owned is a cluster with pods of several kinds of owner.
func owned(t *testing.T) (*metadatafake.FakeMetadataClient, *fakediscovery.FakeDiscovery) {
	t.Helper()
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	no := false
	plain := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "plain", UID: "x", Controller: &no}
	client := metadatafake.NewSimpleMetadataClient(
		scheme,
		partial("v1", "Pod", "deployed", plain, controlledBy("apps/v1", "ReplicaSet", "rs")),
		partial("apps/v1", "ReplicaSet", "rs", controlledBy("apps/v1", "Deployment", "deploy")),
		partial("apps/v1", "Deployment", "deploy"),
		partial("v1", "Pod", "bare", plain),
		partial("v1", "Pod", "orphan", controlledBy("apps/v1", "StatefulSet", "gone")),
		partial("v1", "Pod", "strange", controlledBy("example.com/v1", "Widget", "w")),
		partial("v1", "Pod", "broken", controlledBy("a/b/c", "Widget", "w")),
	)
	discovery := &fakediscovery.FakeDiscovery{Fake: &clienttesting.Fake{Resources: []*metav1.APIResourceList{
		{GroupVersion: "apps/v1", APIResources: []metav1.APIResource{
			{Name: "replicasets/status", Kind: "ReplicaSet"},
			{Name: "replicasets", Kind: "ReplicaSet"},
			{Name: "deployments", Kind: "Deployment"},
			{Name: "statefulsets", Kind: "StatefulSet"},
		}},
	}}}
	return client, discovery
}

func TestOwner(t *testing.T) {
	t.Parallel()
	reference := func(apiVersion, kind, name string) *metav1.OwnerReference {
		yes := true
		return &metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: name, UID: uidOf("ns", name), Controller: &yes}
	}
	for name, tc := range map[string]struct {
		pod       string
		level     int
		want      *metav1.OwnerReference
		wantReads int
		wantErr   []string
	}{
		"below zero: no owner, nothing is read":     {pod: "", level: -1},
		"zero: the pod":                             {pod: "deployed", level: 0, want: reference("v1", "Pod", "deployed"), wantReads: 1},
		"one: its controller":                       {pod: "deployed", level: 1, want: reference("apps/v1", "ReplicaSet", "rs"), wantReads: 1},
		"two: the controller's controller":          {pod: "deployed", level: 2, want: reference("apps/v1", "Deployment", "deploy"), wantReads: 2},
		"the owner itself need not be there":        {pod: "orphan", level: 1, want: reference("apps/v1", "StatefulSet", "gone"), wantReads: 1},
		"its kind need not be served":               {pod: "strange", level: 1, want: reference("example.com/v1", "Widget", "w"), wantReads: 1},
		"too high: the chain and what would work":   {pod: "deployed", level: 3, wantReads: 3, wantErr: []string{`Pod "deployed" → ReplicaSet "rs" → Deployment "deploy"`, "no controlling owner", "level that works is 2"}},
		"a bare pod has no owner":                   {pod: "bare", level: 1, wantReads: 1, wantErr: []string{"v1 Pod", `"bare"`, `namespace "ns"`, "no controlling owner", "level that works is 0"}},
		"a pod that is not there":                   {pod: "nowhere", level: 0, wantReads: 1, wantErr: []string{"fetch v1 Pod", "nowhere", "not found"}},
		"an owner that is not there":                {pod: "orphan", level: 2, wantReads: 2, wantErr: []string{"fetch apps/v1 StatefulSet", "gone", "not found"}},
		"a kind that is not served cannot be read":  {pod: "strange", level: 2, wantReads: 1, wantErr: []string{"does not serve the kind", "Widget"}},
		"a reference that cannot be understood":     {pod: "broken", level: 2, wantReads: 1, wantErr: []string{"apiVersion", "a/b/c"}},
		"a reference like that is taken over as is": {pod: "broken", level: 1, want: reference("a/b/c", "Widget", "w"), wantReads: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, discovery := owned(t)
			got, err := Owner(t.Context(), OwnerConfig{Metadata: client, Discovery: discovery, Namespace: "ns", Pod: tc.pod, Level: tc.level})
			if (err != nil) != (tc.wantErr != nil) {
				t.Fatalf("error %v, want one with %q", err, tc.wantErr)
			}
			for _, want := range tc.wantErr {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not mention %q", err, want)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("owner (-want +got):\n%s", diff)
			}
			if got := len(client.Actions()); got != tc.wantReads {
				t.Errorf("%d reads, want %d", got, tc.wantReads)
			}
		})
	}
}

// Failures that may pass are tried again for a while; those that do not pass end the search at once.
func TestOwnerIsPatientWithWhatPasses(t *testing.T) {
	t.Parallel()
	pods := schema.GroupResource{Resource: "pods"}
	for name, tc := range map[string]struct {
		err      error
		times    int
		wantErr  string
		wantTook time.Duration // about
	}{
		"the API server comes back":    {errors.New("connection refused"), 3, "", 2 * time.Second},
		"the API server stays away":    {apierrors.NewServiceUnavailable("down"), 1000, "given up after 1m0s", time.Minute},
		"a right that is missing":      {apierrors.NewForbidden(pods, "deployed", nil), 1000, "grant the verb get on pods in namespace", 0},
		"a pod that is another's name": {apierrors.NewNotFound(pods, "deployed"), 1000, "not found", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				client, discovery := owned(t)
				count := 0
				client.PrependReactor("get", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
					count++
					return count <= tc.times, nil, tc.err
				})
				begin := time.Now()
				_, err := Owner(t.Context(), OwnerConfig{Metadata: client, Discovery: discovery, Namespace: "ns", Pod: "deployed", Level: 1})
				if took := time.Since(begin); took > tc.wantTook || took < tc.wantTook/2 {
					t.Errorf("took %s, want about %s", took, tc.wantTook)
				}
				if tc.wantErr == "" && err != nil {
					t.Errorf("error %v", err)
				}
				if tc.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tc.wantErr) || !errors.Is(err, tc.err)) {
					t.Errorf("error %v, want %q that wraps the cause", err, tc.wantErr)
				}
			})
		})
	}
}

func TestOwnerEndsWithItsContext(t *testing.T) {
	t.Parallel()
	client, discovery := owned(t)
	client.PrependReactor("get", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("connection refused")
	})
	stopped := errors.New("stopped")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, stopped)
	defer cancel()
	_, err := Owner(ctx, OwnerConfig{Metadata: client, Discovery: discovery, Namespace: "ns", Pod: "deployed"})
	if !errors.Is(err, stopped) || strings.Contains(err.Error(), "given up") {
		t.Errorf("error %v, want the cause of the end", err)
	}
}

func TestHasKind(t *testing.T) {
	t.Parallel()
	_, discovery := owned(t)
	for name, tc := range map[string]struct {
		groupVersion, kind string
		want               bool
	}{
		"served":                         {"apps/v1", "Deployment", true},
		"another kind of the group":      {"apps/v1", "CronJob", false},
		"a group that is not there":      {"snapshot.storage.k8s.io/v1", "VolumeSnapshot", false},
		"a version that is not there":    {"apps/v1beta1", "Deployment", false},
		"the first entry is a part only": {"apps/v1", "ReplicaSet", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := HasKind(t.Context(), discovery, tc.groupVersion, tc.kind)
			if err != nil || got != tc.want {
				t.Errorf("got %v, %v, want %v", got, err, tc.want)
			}
		})
	}
}

// No answer is not the answer "no".
func TestHasKindReportsFailures(t *testing.T) {
	t.Parallel()
	_, discovery := owned(t)
	down := errors.New("down")
	discovery.PrependReactor("get", "resource", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, down })
	if got, err := HasKind(t.Context(), discovery, "apps/v1", "Deployment"); !errors.Is(err, down) || got {
		t.Errorf("got %v, %v, want %v", got, err, down)
	}
}
