package e2e

import (
	"context"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/collector"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
	"github.com/csi-sidecars/external-provisioner/test/sidecar"
)

// tree is the spans of a trace, each with the names of those above it, sorted.
func tree(spans []collector.Span) []string {
	byID := map[string]collector.Span{}
	for _, span := range spans {
		byID[span.ID] = span
	}
	var lines []string
	for _, span := range spans {
		line := span.Name
		for parent, ok := byID[span.Parent]; ok; parent, ok = byID[parent.Parent] {
			line = parent.Name + " > " + line
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return lines
}

// named returns the spans of that name, in the order in which they ended.
func named(spans []collector.Span, name string) []collector.Span {
	return slices.DeleteFunc(slices.Clone(spans), func(span collector.Span) bool { return span.Name != name })
}

// A claim's trace has its UID for an id, and in it is all that was done for it, by two processes, from the first
// attempt to the end of its volume. The driver hears of each call's span.
func TestTheLifeOfAClaimIsOneTrace(t *testing.T) {
	t.Parallel()
	const hush = "hush-do-not-send"
	w := sidecar.NewWorld(t, cluster.Shared(t), memdriver.Config{})
	secret := fixture.Secret(w.Namespace, "key", map[string]string{"password": hush})
	if _, err := w.Client.CoreV1().Secrets(w.Namespace).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	class := w.Class(t, fixture.Class("traced").Parameter(wellknown.ParamSecretName, "key").Parameter(wellknown.ParamSecretNamespace, "${pvc.namespace}"))
	c := collector.Serve(t)
	w.Driver.Add(memdriver.Rule{Method: "CreateVolume", Times: 1, Code: 13, Message: "no login with " + hush})
	options := w.Options("--otlp-endpoint=http://" + c.Address())
	options.Env = []string{"OTEL_RESOURCE_ATTRIBUTES=deployment.environment.name=test"}

	process := sidecar.Start(t, options)
	claim := w.Claim(t, fixture.Claim("data").Class(class))
	_, pv := w.Bound(t, "data")
	process.Terminate()
	if code := process.Exits(t, soon); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	sidecar.Start(t, options)
	w.DeleteClaim(t, "data")
	w.Empty(t)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	spans, err := c.WaitFor(ctx, func(spans []collector.Span) bool { return len(named(spans, "delete")) > 0 })
	if err != nil {
		t.Fatal(err)
	}

	want := []string{
		"delete",
		"delete > DELETE persistentvolumes",
		"delete > GET secrets",
		"delete > PATCH persistentvolumes",
		"delete > csi.v1.Controller/DeleteVolume",
		"provision",
		"provision",
		"provision > GET secrets",
		"provision > GET secrets",
		"provision > POST persistentvolumes",
		"provision > csi.v1.Controller/CreateVolume",
		"provision > csi.v1.Controller/CreateVolume",
		"provision > plan",
		"provision > plan",
	}
	// How often these are read depends on whether the caches have caught up since the restart.
	got := slices.DeleteFunc(tree(spans), func(span string) bool {
		return span == "delete > GET persistentvolumes" || span == "delete > GET volumeattachments"
	})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("spans (-want +got):\n%s", diff)
	}
	trace := strings.ReplaceAll(string(claim.UID), "-", "")
	for _, span := range spans {
		if span.Trace != trace {
			t.Errorf("span %v is not in trace %s", span, trace)
		}
		for _, text := range append(slices.Collect(maps.Values(span.Attributes)), span.Message) {
			if strings.Contains(text, hush) {
				t.Errorf("span %v shows a secret", span)
			}
		}
		if span.Resource["deployment.environment.name"] != "test" || span.Resource["service.name"] != "csi-provisioner" || span.Resource["service.version"] != sidecar.Version {
			t.Errorf("resource %v", span.Resource)
		}
	}
	about := map[string]string{
		"csi.driver": w.Driver.Name(), "csi.outcome": "Done", "k8s.namespace.name": w.Namespace, "k8s.persistentvolumeclaim.name": "data",
		"k8s.persistentvolumeclaim.uid": string(claim.UID), "k8s.persistentvolume.name": pv.Name, "k8s.storageclass.name": class,
	}
	attempts := named(spans, "provision")
	for _, span := range []collector.Span{attempts[1], named(spans, "delete")[0]} {
		if diff := cmp.Diff(about, span.Attributes); diff != "" || span.Failed {
			t.Errorf("span %v, attributes (-want +got):\n%s", span, diff)
		}
	}
	if first := attempts[0]; !first.Failed || first.Attributes["csi.outcome"] != "Failed" || !strings.Contains(first.Message, "no login with ***stripped***") {
		t.Errorf("first attempt %v, want the driver's error", first)
	}
	for _, method := range []string{"CreateVolume", "DeleteVolume"} {
		var got []string
		for _, call := range w.Driver.Calls(method) {
			got = append(got, call.Metadata.Get("traceparent")...)
		}
		var want []string
		for _, span := range named(spans, "csi.v1.Controller/"+method) {
			want = append(want, "00-"+trace+"-"+span.ID+"-01")
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("traceparent of %s (-want +got):\n%s", method, diff)
		}
	}
	for _, call := range w.Driver.Calls("Probe", "GetPluginInfo") {
		if got := call.Metadata.Get("traceparent"); len(got) > 0 {
			t.Errorf("%v came with traceparent %v", call, got)
		}
	}
}

// A collector that takes connections and never answers costs a stop two seconds, and nothing else.
func TestASilentCollectorHoldsNothingUp(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	w := sidecar.NewWorld(t, cluster.Shared(t), memdriver.Config{})
	process := sidecar.Start(t, w.Options("--otlp-endpoint="+listener.Addr().String()))
	w.Claim(t, fixture.Claim("data").Class(w.Class(t, fixture.Class("c"))))
	w.Bound(t, "data")
	w.DeleteClaim(t, "data")
	w.Empty(t)
	process.Terminate()
	if code := process.Exits(t, soon); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	process.Says(t, "The last spans are lost", soon)
}

func TestWithoutTheFlagNothingIsTraced(t *testing.T) {
	t.Parallel()
	w := sidecar.NewWorld(t, cluster.Shared(t), memdriver.Config{})
	c := collector.Serve(t)
	options := w.Options()
	options.Env = []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + c.Address(), "OTEL_TRACES_SAMPLER=nonsense"}
	process := sidecar.Start(t, options)
	w.Claim(t, fixture.Claim("data").Class(w.Class(t, fixture.Class("c"))))
	w.Bound(t, "data")
	process.Terminate()
	if code := process.Exits(t, soon); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if spans := c.Spans(); len(spans) > 0 {
		t.Errorf("spans %v", spans)
	}
	for _, call := range w.Driver.Calls() {
		if got := call.Metadata.Get("traceparent"); len(got) > 0 {
			t.Errorf("%v came with traceparent %v", call, got)
		}
	}
}
