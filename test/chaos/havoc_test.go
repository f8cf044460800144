package chaos

import (
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/test/memdriver"
)

// callTimeout is the sidecar's --timeout: some calls take longer. It is well above what a busy machine adds to the others,
// and short enough that a sidecar often lives that long.
const callTimeout = 4 * time.Second

// dice are seeded and may be thrown by many. What falls depends on the seed, and on who throws first.
type dice struct {
	mu     sync.Mutex
	random *rand.Rand
}

func newDice(seed uint64) *dice { return &dice{random: rand.New(rand.NewPCG(seed, 1))} } //nolint:gosec // chaos, no secret

// chance is true in that share of all throws.
func (d *dice) chance(share float64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.random.Float64() < share
}

// between returns a duration in [low, high).
func (d *dice) between(low, high time.Duration) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return low + time.Duration(d.random.Int64N(int64(high-low)))
}

// driverRules are what goes wrong in a driver that keeps to the specification: no final error for a volume that
// was made, no answer that is garbage.
func driverRules(d *dice) []memdriver.Rule {
	sometimes := func(share float64) func(memdriver.Call) bool {
		return func(memdriver.Call) bool { return d.chance(share) }
	}
	var rules []memdriver.Rule
	for _, method := range []string{"CreateVolume", "DeleteVolume"} {
		rules = append(rules,
			memdriver.Rule{Method: method, When: sometimes(0.05), Code: codes.Internal, Fresh: true},
			memdriver.Rule{Method: method, When: sometimes(0.05), Code: codes.Unavailable},
			memdriver.Rule{Method: method, When: sometimes(0.05), Code: codes.Aborted},
			// The answer is lost, the work is done.
			memdriver.Rule{Method: method, When: sometimes(0.08), Code: codes.DeadlineExceeded, Late: true},
			memdriver.Rule{Method: method, When: sometimes(0.05), Code: codes.Unavailable, Late: true},
			// Slow before the work and after it, now and then too slow.
			memdriver.Rule{Method: method, When: sometimes(0.15), Delay: 300 * time.Millisecond},
			memdriver.Rule{Method: method, When: sometimes(0.15), Lag: 300 * time.Millisecond},
			memdriver.Rule{Method: method, When: sometimes(0.05), Delay: callTimeout + time.Second},
			memdriver.Rule{Method: method, When: sometimes(0.05), Lag: callTimeout + time.Second},
		)
	}
	return append(rules, memdriver.Rule{Method: "CreateVolume", When: sometimes(0.05), Code: codes.ResourceExhausted, Fresh: true})
}

// apiFaults judges requests as an overloaded API server with a bad network in front does.
func apiFaults(d *dice) func(*http.Request) fate {
	return func(r *http.Request) fate {
		if isWatch(r) || resourceOf(r) == "" {
			return fate{}
		}
		if !isWrite(r) {
			if d.chance(0.02) {
				return fate{status: http.StatusInternalServerError, reason: metav1.StatusReasonInternalError}
			}
			return fate{}
		}
		changes := r.Method == http.MethodPut || r.Method == http.MethodPatch
		switch {
		case changes && d.chance(0.05):
			return fate{status: http.StatusConflict, reason: metav1.StatusReasonConflict}
		case d.chance(0.03):
			return fate{status: http.StatusTooManyRequests, reason: metav1.StatusReasonTooManyRequests}
		case d.chance(0.04):
			return fate{status: http.StatusInternalServerError, reason: metav1.StatusReasonInternalError}
		case d.chance(0.03):
			return fate{loseAnswer: true}
		case d.chance(0.02):
			return fate{loseRequest: true}
		}
		return fate{}
	}
}
