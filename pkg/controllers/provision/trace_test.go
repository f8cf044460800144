package provision

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/trace"
	"github.com/csi-sidecars/external-provisioner/test/collector"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// Every attempt is a span in the trace of its claim, and says how it ended.
func TestSpans(t *testing.T) {
	const uid, id = "5f3c1a2e-9b7d-4e60-8a11-0c2f4d6e8b90", "5f3c1a2e9b7d4e608a110c2f4d6e8b90"
	claim := func() *fixture.ClaimBuilder { return fixture.Claim("c").UID(uid).Class("fast").For(driverName) }
	for name, tc := range map[string]struct {
		run  func(w *world)
		want []string // "<name> <outcome> <message>" in the order in which they end, those within another indented
	}{
		"a failure and a success": {func(w *world) {
			w.driver.answers(final)
			w.put(claim().Obj())
			w.pass(10 * time.Second)
		}, []string{"  plan", "provision Failed rpc error: code = Internal desc = as told", "  plan", "provision Done"}},
		"no answer, and the same request again": {func(w *world) {
			w.driver.answers(noAnswer)
			w.put(claim().Obj())
			w.pass(10 * time.Second)
		}, []string{"  plan", "provision Background rpc error: code = DeadlineExceeded desc = as told", "provision Done"}},
		"what is not found": {func(w *world) {
			w.put(claim().FromSnapshot("gone").Obj())
			w.pass(500 * time.Millisecond)
		}, []string{
			"  plan Unchanged VolumeSnapshot default/gone as data source: snapshot  not bound",
			"provision Unchanged VolumeSnapshot default/gone as data source: snapshot  not bound",
		}},
		"a wait for a turn": {func(w *world) {
			w.driver.answers(answer{after: time.Second})
			w.origin("src")
			w.clone("other", "src")
			w.pass(time.Millisecond)
			w.put(claim().FromClaim("src").Obj())
			w.pass(10 * time.Second)
		}, []string{"  plan", "provision Unchanged", "  plan", "provision Done"}},
		"somebody else's": {func(w *world) {
			w.put(claim().From("example.com", "Image", "i").Obj())
			w.pass(time.Second)
		}, nil},
		"a volume that is not saved at once": {func(w *world) {
			tries := 0
			w.api.failing(func(verb, resource, _ string) error {
				if verb == "create" && resource == "persistentvolumes" && tries < 2 {
					tries++
					return errors.New("no connection")
				}
				return nil
			})
			w.put(claim().Obj())
			w.pass(time.Second)
		}, []string{"  plan", "provision Unchanged no connection", "save Unchanged no connection", "save Done"}},
		"a create that an earlier process left": {func(w *world) {
			w.driver.answers(answer{after: time.Second, code: codes.DeadlineExceeded})
			w.put(claim().Obj())
			w.pass(500 * time.Millisecond)
			w.die()
			w.start()
			w.pass(10 * time.Second)
		}, []string{"  plan", "provision Background rpc error: code = Canceled desc = context canceled", "provision Done"}},
		"a deletion that needs two calls": {func(w *world) {
			w.driver.deletes = []answer{final}
			w.put(fixture.PV("pv").UID("pv-uid").ProvisionedBy(driverName).Class("fast").Phase(corev1.VolumeReleased).BoundTo(claim().Obj()).Obj())
			w.pass(10 * time.Second)
		}, []string{"delete Unchanged rpc error: code = Internal desc = as told", "delete Done"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := collector.Serve(t)
			tracer, err := trace.New(t.Context(), trace.Config{Endpoint: trace.Endpoint{Target: c.Address()}, Ratio: 1})
			if err != nil {
				t.Fatal(err)
			}
			inWorld(t, func(cfg *Config) { cfg.Tracer, cfg.MaxCreatesPerSource = tracer, 1 }, func(_ *testing.T, w *world) { tc.run(w) })
			ctx, stop := context.WithCancel(t.Context())
			stop()
			if err := tracer.Run(ctx); err != nil {
				t.Error(err)
			}
			var got []string
			for _, span := range c.Spans() {
				if span.Trace != id {
					continue // another claim's
				}
				line := strings.Join([]string{span.Name, span.Attributes["csi.outcome"], span.Message}, " ")
				if span.Parent != "" {
					line = "  " + line
				}
				got = append(got, strings.TrimRight(line, " "))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("spans (-want +got):\n%s", diff)
			}
		})
	}
}
