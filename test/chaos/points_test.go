package chaos

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
	"github.com/csi-sidecars/external-provisioner/test/sidecar"
)

// trap kills a sidecar at one point of its flow.
type trap struct {
	mu      sync.Mutex
	victim  *sidecar.Sidecar
	sprung  chan struct{}
	passed  int    // how many points have been passed
	writing int    // how many writes are between their two points
	at      int    // the point that kills
	where   string // the point that has killed
}

func newTrap(at int) *trap { return &trap{at: at, sprung: make(chan struct{})} }

// point kills the victim if this is the point; true for it and for all that come after it.
func (p *trap) point(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.passed++
	if p.passed == p.at+1 {
		p.where = name
		p.victim.Kill()
		close(p.sprung) // From here on where is read without the lock.
	}
	return p.passed > p.at
}

// judge makes a point before and a point after each write.
func (p *trap) judge(r *http.Request) fate {
	if !isWrite(r) {
		return fate{}
	}
	if p.point("before " + describe(r)) {
		return fate{loseRequest: true}
	}
	p.mu.Lock()
	p.writing++
	p.mu.Unlock()
	return fate{after: func() {
		p.point("after " + describe(r))
		p.mu.Lock()
		p.writing--
		p.mu.Unlock()
	}}
}

// idle says whether no write is between its two points.
func (p *trap) idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.writing == 0
}

// No volume is leaked, at whatever moment the sidecar is killed: before or after each write, and before or after the
// driver's work. Each point is one run.
func TestAKillAtAnyPointLeaksNothing(t *testing.T) {
	t.Parallel()
	for name, deletedMeanwhile := range map[string]bool{"the claim stays": false, "the claim is deleted meanwhile": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, cluster.Shared(t), memdriver.Config{})
			class := s.Class(t, fixture.Class("c"))
			victim := s.start(t)
			for at := 0; ; at++ {
				where, next := s.runWithKill(t, victim, class, at, deletedMeanwhile)
				if where == "" {
					if at < 5 {
						t.Errorf("only %d points in the flow: this test proves nothing", at)
					}
					return
				}
				t.Logf("point %d: %s", at, where)
				victim = next
			}
		})
	}
}

// runWithKill makes and deletes a claim, with a kill at the point. It returns where that was and the sidecar that
// came after; "" when the flow has fewer points, or when the rest of them is none of the claim being deleted
// meanwhile, because it already is.
func (s *stage) runWithKill(t *testing.T, victim *sidecar.Sidecar, class string, at int, deletedMeanwhile bool) (string, *sidecar.Sidecar) {
	t.Helper()
	p := newTrap(at)
	p.victim = victim
	s.proxy.judgeBy(p.judge)
	// The rule never changes a call: looking at it is the point.
	removeRule := s.Driver.Add(memdriver.Rule{When: func(call memdriver.Call) bool { return callPoint(p, call) }})
	claim := fmt.Sprintf("point-%d", at)
	s.Claim(t, fixture.Claim(claim).Class(class))
	deleted := false
	if s.reaches(t, p, claim, isBound) {
		if deletedMeanwhile {
			return "", nil
		}
		s.DeleteClaim(t, claim)
		deleted = true
		if s.reaches(t, p, claim, func(claim *corev1.PersistentVolumeClaim) bool { return claim == nil && s.isEmpty(t) }) {
			return "", nil
		}
	}
	s.proxy.judgeBy(nil)
	removeRule()
	if deletedMeanwhile {
		s.DeleteClaim(t, claim)
		deleted = true
	}
	next := s.start(t)
	if !deleted {
		s.settle(t, p.where, sidecar.Patience)
		s.DeleteClaim(t, claim)
	}
	s.settle(t, p.where, sidecar.Patience)
	s.Empty(t)
	return p.where, next
}

// callPoint makes a point of each call that changes volumes. The work is done all the same: the answer is lost.
func callPoint(p *trap, call memdriver.Call) bool {
	if call.Method == "CreateVolume" || call.Method == "DeleteVolume" {
		p.point("call of " + call.Method)
	}
	return false
}

// reaches waits until the claim is as wanted and no write is on its way; false when the trap has sprung before.
func (s *stage) reaches(t *testing.T, p *trap, name string, wanted func(*corev1.PersistentVolumeClaim) bool) bool {
	t.Helper()
	killed := false
	sidecar.Eventually(t, "claim "+name+" is as wanted", func(ctx context.Context) (bool, error) {
		claim, err := s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			claim, err = nil, nil
		}
		done := err == nil && wanted(claim) && p.idle()
		// Last of all, because a kill may have made what is wanted.
		select {
		case <-p.sprung:
			killed = true
			return true, nil
		default:
			return done, err
		}
	})
	return !killed
}

func isBound(claim *corev1.PersistentVolumeClaim) bool {
	return claim != nil && claim.Status.Phase == corev1.ClaimBound && len(claim.Finalizers) == 1
}

func (s *stage) isEmpty(t *testing.T) bool {
	t.Helper()
	now, err := s.look(t.Context())
	return err == nil && len(now.pvs)+len(now.volumes) == 0
}
