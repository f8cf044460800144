package e2e

import (
	"context"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/deploy"
	"github.com/csi-sidecars/external-provisioner/test/sidecar"
)

// openStage starts a sidecar with these rights in a world of its own.
func openStage(t *testing.T, p play, r rights, args ...string) *stage {
	t.Helper()
	w := sidecar.NewWorld(t, cluster.Shared(t), p.driver)
	o := w.Options(append(slices.Clone(p.args), args...)...)
	o.Kubeconfig = limitedAccount(t, w, r)
	if p.env != nil {
		o.Env = append(o.Env, p.env(t, w)...)
	}
	s := &stage{World: w, t: t}
	s.start = func(env ...string) *sidecar.Sidecar {
		again := o
		again.Env = append(slices.Clone(o.Env), env...)
		started := sidecar.Start(t, again)
		s.all = append(s.all, started)
		return started
	}
	s.sidecar = s.start()
	return s
}

// unseen are rights that are used by requests which are in no log, and why.
var unseen = map[string]string{
	"delete leases.coordination.k8s.io": "the sweep waits ten minutes for a node that may come back; its own test deletes",
}

// forbidden matches the API server's words, wherever they are told.
var forbidden = regexp.MustCompile(`[^\n]* is forbidden: [^\n]*`)

// With exactly the shipped rights of a feature, everything of it works and nothing is forbidden; and all features
// together use each right that is shipped.
func TestTheShippedRightsAreEnoughAndNoMore(t *testing.T) { //nolint:tparallel // what the features use is compared when all have ended
	t.Parallel()
	var mu sync.Mutex
	used := map[string]bool{}
	t.Run("features", func(t *testing.T) { // it has ended when all features have
		for name, p := range plays {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := openStage(t, p, shippedRights(t, p.rights...), "-v=6")
				s.sidecar.MustBeReady(t)
				p.act(s)
				var requests []request
				for _, one := range s.all {
					one.Terminate() // So that the last answers are in the log.
					one.Exits(t, soon)
					requests = append(requests, requestsOf(t, one.Log())...)
					if line := forbidden.FindString(one.Log()); line != "" {
						t.Errorf("forbidden: %s", line)
					}
				}
				if len(requests) == 0 {
					t.Fatal("the logs show no requests: this test proves nothing")
				}
				mu.Lock()
				defer mu.Unlock()
				for _, request := range requests {
					for _, right := range request.needs {
						used[right.String()] = true
					}
					if request.status == 403 {
						t.Errorf("forbidden: %s", request.line)
					}
				}
			})
		}
	})
	if t.Failed() {
		return
	}
	for _, right := range shippedRights(t, "rbac-*.yaml").all() {
		if reason := unseen[right.String()]; !used[right.String()] && reason == "" {
			t.Errorf("shipped and never used: %s", right)
		}
	}
}

// removal is a right that is missing.
type removal struct {
	play string
	// resource and verbs are names with blanks between them; no verbs means all.
	resource, verbs string
	args            []string
	// stops shows what does not work any more, and what still does.
	stops func(*stage)
	// says is what the log must tell.
	says string
}

func (r removal) drops(right deploy.Right) bool {
	return slices.Contains(strings.Fields(r.resource), right.Resource) &&
		(r.verbs == "" || slices.Contains(strings.Fields(r.verbs), right.Verb))
}

func TestAMissingRightIsNamedAndStopsOnlyWhatNeedsIt(t *testing.T) {
	t.Parallel()
	for name, r := range removals {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := plays[r.play]
			left, dropped := shippedRights(t, p.rights...).without(r.drops)
			if dropped == 0 {
				t.Fatalf("%v have no right to %s %s", p.rights, r.verbs, r.resource)
			}
			s := openStage(t, p, left, r.args...)
			r.stops(s)
			deadline := time.Now().Add(sidecar.Patience)
			for !strings.Contains(plain(s.sidecar.Log()), r.says) {
				if time.Now().After(deadline) {
					t.Fatalf("the log does not say %q", r.says)
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
}

// Each shipped right has a test that takes it away.
func TestEachRightIsTakenAwayOnce(t *testing.T) {
	t.Parallel()
	for _, file := range slices.Sorted(maps.Keys(filesOfPlays())) {
		for _, right := range shippedRights(t, file).all() {
			if !slices.ContainsFunc(slices.Collect(maps.Values(removals)), func(r removal) bool {
				return slices.Contains(plays[r.play].rights, file) && r.drops(right)
			}) {
				t.Errorf("%s: no test takes away: %s", file, right)
			}
		}
	}
	for _, object := range deploy.Objects(t, "rbac-*.yaml") {
		if !filesOfPlays()[object.File] {
			t.Errorf("no play uses %s", object.File)
		}
	}
}

func filesOfPlays() map[string]bool {
	files := map[string]bool{}
	for _, p := range plays {
		for _, file := range p.rights {
			files[file] = true
		}
	}
	return files
}

// notReady shows that the sidecar does not begin to work.
func notReady(s *stage) {
	s.t.Helper()
	sidecar.Eventually(s.t, "the sidecar says that its caches are missing", func(ctx context.Context) (bool, error) {
		status, body, err := s.sidecar.Get(ctx, "/readyz")
		return err == nil && status == 503 && strings.Contains(body, "caches"), nil
	})
	if calls := s.Driver.Calls("CreateVolume"); len(calls) > 0 {
		s.t.Errorf("calls %v", calls)
	}
}
