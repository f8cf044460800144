package chaos

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/sidecar"
)

const (
	users = 10 // of each class
	zone  = "topology.mem.csi/zone"
	// grace is the pod's terminationGracePeriodSeconds.
	grace = 30 * time.Second
	// patience is how long everything may take to settle when nothing fails any more, Kubernetes' own controllers included.
	patience = sidecar.Patience
)

func segments() []map[string]string { return []map[string]string{{zone: "a"}, {zone: "b"}} }

func seedOf(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv(seedVariable)
	if text == "" {
		return uint64(time.Now().UnixNano()) % 1_000_000 //nolint:gosec // after 1970
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", seedVariable, err)
	}
	return seed
}

// durationOf returns the time of one of the two tests.
func durationOf(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv(durationVariable)
	if text == "" {
		return 30 * time.Second
	}
	duration, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s: %v", durationVariable, err)
	}
	return duration / 2
}

func nodeName(segment map[string]string) string { return "node-" + segment[zone] }

// nodes makes a node in each segment.
func (p *play) nodes() {
	p.t.Helper()
	for _, segment := range segments() {
		if _, err := p.Client.CoreV1().Nodes().Create(p.t.Context(), fixture.Node(nodeName(segment), segment), metav1.CreateOptions{}); err != nil {
			p.t.Fatal(err)
		}
		csiNode := fixture.CSINode(nodeName(segment), p.Driver.Name(), segment)
		if _, err := p.Client.StorageV1().CSINodes().Create(p.t.Context(), csiNode, metav1.CreateOptions{}); err != nil {
			p.t.Fatal(err)
		}
	}
}

// pause waits for d; false when the run's time is over.
func (p *play) pause(d time.Duration) bool {
	select {
	case <-time.After(d):
		return p.until.Err() == nil
	case <-p.until.Done():
		return false
	}
}

// cut notes that the sidecar or the driver has just died: an answer from before may not have arrived.
func (p *play) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cuts = append(p.cuts, time.Now())
}

// golden is a claim that others are clones of.
const golden = "golden"

// golden makes it, before anything goes wrong.
func (p *play) golden(class string) {
	p.t.Helper()
	process := p.start(p.t)
	p.Claim(p.t, fixture.Claim(golden).Class(class).Size("1Mi"))
	p.Bound(p.t, golden)
	process.Kill()
}

// user makes claims of the class and deletes most of them after a while, bound or not.
func (p *play) user(number int, class string) {
	claims := p.Client.CoreV1().PersistentVolumeClaims(p.Namespace)
	for i := 0; p.pause(p.dice.between(0, 400*time.Millisecond)); i++ {
		name := fmt.Sprintf("claim-%d-%d", number, i)
		claim := fixture.Claim(name).Class(class).Size("1Mi").Namespace(p.Namespace)
		if p.dice.chance(0.3) {
			claim.FromClaim(golden)
		}
		if _, err := claims.Create(p.until, claim.Obj(), metav1.CreateOptions{}); err != nil {
			continue // The API server is away. If it has taken the claim in spite of that, the end will find it.
		}
		p.claims.Add(1)
		if !p.pause(p.dice.between(0, 5*time.Second)) || p.dice.chance(0.1) {
			continue // It stays until the end.
		}
		for claims.Delete(p.until, name, metav1.DeleteOptions{}) != nil && p.pause(300*time.Millisecond) {
		}
	}
}

// schedule chooses a node for each claim that waits for one, as the scheduler does, until ctx ends.
func (p *play) schedule(ctx context.Context, class string) {
	claims := p.Client.CoreV1().PersistentVolumeClaims(p.Namespace)
	for ctx.Err() == nil {
		list, err := claims.List(ctx, metav1.ListOptions{})
		if err != nil {
			list = &corev1.PersistentVolumeClaimList{}
		}
		for i := range list.Items {
			claim := &list.Items[i]
			if *claim.Spec.StorageClassName != class || claim.DeletionTimestamp != nil || claim.Spec.VolumeName != "" ||
				claim.Annotations[wellknown.AnnSelectedNode] != "" {
				continue
			}
			segment := segments()[0]
			if p.dice.chance(0.5) {
				segment = segments()[1]
			}
			metav1.SetMetaDataAnnotation(&claim.ObjectMeta, wellknown.AnnSelectedNode, nodeName(segment))
			_, _ = claims.Update(ctx, claim, metav1.UpdateOptions{}) // A conflict is met in the next round.
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func (p *play) restartDriver() {
	for p.pause(p.dice.between(3*time.Second, 8*time.Second)) {
		p.Driver.Stop()
		p.cut()
		p.pause(p.dice.between(0, time.Second))
		if err := p.Driver.Start(); err != nil {
			p.t.Error(err)
			return
		}
		p.driverRestarts.Add(1)
	}
}

// restartAPIServer does so once in the middle of each half minute.
func (p *play) restartAPIServer(duration time.Duration) {
	every := min(duration, 30*time.Second)
	for p.pause(every / 2) {
		p.Cluster.StopAPIServer()
		p.pause(p.dice.between(0, time.Second))
		if err := p.Cluster.StartAPIServer(context.WithoutCancel(p.until)); err != nil {
			p.t.Error(err)
			return
		}
		p.apiRestarts.Add(1)
		p.pause(every / 2)
	}
}

// restartSidecar starts the sidecar and ends it, again and again, the last time for good.
func (p *play) restartSidecar() {
	for p.until.Err() == nil {
		process := p.start(p.t)
		p.awaitLife(process)
		p.pause(p.dice.between(500*time.Millisecond, 4*time.Second))
		if p.dice.chance(p.ending.kill) {
			p.kills.Add(1)
			process.Kill()
			p.cut()
			continue
		}
		p.stops.Add(1)
		begin := time.Now()
		process.Terminate()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(p.until), grace)
		if code, err := process.Wait(ctx); err != nil {
			p.t.Errorf("the sidecar did not stop within the grace period: %v", err)
			process.Kill()
		} else if code != 0 {
			p.t.Errorf("the sidecar stopped with %d", code)
		}
		cancel()
		p.stopping.Add(int64(time.Since(begin)))
		p.cut()
	}
}

// awaitLife waits until the sidecar serves, also when the time is up: before that a signal would meet the Go runtime alone.
func (p *play) awaitLife(process *sidecar.Sidecar) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.until), grace)
	defer cancel()
	for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		if status, _, err := process.Get(ctx, "/healthz"); err == nil && status == http.StatusOK {
			return
		}
	}
	p.t.Error("the sidecar does not serve")
}

// verdict lets everything settle without any failure and tells what was promised and not kept.
func (p *play) verdict() {
	p.t.Helper()
	p.proxy.judgeBy(nil)
	p.Driver.ClearRules()
	p.t.Logf("%d claims; sidecar stopped %d times (%s in all) and killed %d times; driver restarted %d times, API server %d times; %d requests spoilt; %d calls, %d given up",
		p.claims.Load(), p.stops.Load(), time.Duration(p.stopping.Load()).Round(time.Millisecond), p.kills.Load(), p.driverRestarts.Load(), p.apiRestarts.Load(), p.refused.Load(), len(p.Driver.Calls()), givenUp(p.Driver.Calls()))
	if p.claims.Load() < 10 || p.stops.Load()+p.kills.Load() < 2 {
		p.t.Error("too little has happened to prove anything")
	}
	p.start(p.t)
	p.settle(p.t, "all that chaos", patience)

	left, err := p.look(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	for _, claim := range left.claims {
		p.DeleteClaim(p.t, claim.Name)
	}
	p.Empty(p.t)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, complaint := range doubleDeletes(p.Driver.Calls(), p.cuts) {
		p.t.Error(complaint)
	}
}
