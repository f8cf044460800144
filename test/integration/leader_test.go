package integration

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/process"
	controlplane "github.com/csi-sidecars/external-provisioner/test/cluster"
)

// The durations of these elections. A contender that looks seldom, or waits for the end of a lease, is later than these
// tests have patience: what it does within that, it was woken for.
const (
	leaseDuration = 20 * patience
	renewDeadline = 10 * patience
	seldom        = 5 * patience
	often         = time.Second
)

// replica is one contender for the lease of a namespace.
type replica struct {
	*process.Leader
	leads atomic.Bool
	log   func() string
	stop  context.CancelFunc
	done  chan error
}

// startReplica starts a contender that looks at the lease that often, when nothing tells of it.
func startReplica(t *testing.T, client kubernetes.Interface, ns, identity string, retryPeriod time.Duration, events *cluster.Events) *replica {
	t.Helper()
	cfg := process.LeaderConfig{
		Leases: client.CoordinationV1(), Lock: "mock.csi.test", Namespace: ns, Identity: identity,
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod, DrainTimeout: 10 * time.Second,
		Labels: map[string]string{"example.com/team": "storage"},
	}
	if events != nil {
		cfg.Events = events.QuietRecorder(process.EventComponent(cfg.Lock, identity))
	}
	leader, err := process.NewLeader(cfg)
	if err != nil {
		t.Fatal(err)
	}
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	underlier, ok := logger.GetSink().(ktesting.Underlier)
	if !ok {
		t.Fatal("the test's logger keeps nothing")
	}
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
	r := &replica{Leader: leader, stop: cancel, done: make(chan error, 1), log: underlier.GetBuffer().String}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.done <- leader.Run(ctx, func(stop, _ context.Context) error {
			r.leads.Store(true)
			<-stop.Done()
			r.leads.Store(false)
			return nil
		})
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return r
}

// end stops a replica and fails the test unless it ends without an error.
func (r *replica) end(t *testing.T) {
	t.Helper()
	r.stop()
	select {
	case err := <-r.done:
		if err != nil {
			t.Errorf("Run = %v, want nil after a stop", err)
		}
	case <-time.After(patience):
		t.Fatal("the replica does not end")
	}
}

func readLease(t *testing.T, client kubernetes.Interface, ns string) *coordinationv1.Lease {
	t.Helper()
	lease, err := client.CoordinationV1().Leases(ns).Get(t.Context(), "mock-csi-test", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func writeLease(t *testing.T, client kubernetes.Interface, ns, holder string, seconds int32) {
	t.Helper()
	now := metav1.NowMicro()
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "mock-csi-test"},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, AcquireTime: &now, RenewTime: &now},
	}
	if _, err := client.CoordinationV1().Leases(ns).Create(t.Context(), lease, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestLeaseIsHandedOver(t *testing.T) {
	t.Parallel()
	c := clients(t)
	ns := newNamespace(t, c.Core)
	events := cluster.NewEvents(t.Context(), c.Events)
	writing, endWriting := context.WithCancel(t.Context())
	written := make(chan error, 1)
	go func() { written <- events.Run(writing) }()

	a := startReplica(t, c.Lease, ns, "a", seldom, events)
	eventually(t, "a leads", a.leads.Load)
	b := startReplica(t, c.Lease, ns, "b", seldom, events)
	eventually(t, "b stands by", func() bool { return strings.Contains(b.log(), `Standing by`) })
	lease := readLease(t, c.Core, ns)
	if *lease.Spec.HolderIdentity != "a" || *lease.Spec.LeaseDurationSeconds != int32(leaseDuration.Seconds()) || lease.Labels["example.com/team"] != "storage" {
		t.Errorf("lease %v with labels %v, want a for %s with ours", lease.Spec, lease.Labels, leaseDuration)
	}
	if b.leads.Load() || b.Leading() {
		t.Fatal("two lead")
	}

	a.end(t)
	eventually(t, "b leads", b.leads.Load)
	if got := readLease(t, c.Core, ns); *got.Spec.HolderIdentity != "b" || got.Labels["example.com/team"] != "storage" {
		t.Errorf("lease %v with labels %v, want b with ours", got.Spec, got.Labels)
	}
	b.end(t)
	if got := readLease(t, c.Core, ns); *got.Spec.HolderIdentity != "" {
		t.Errorf("the lease is held by %q after all have ended", *got.Spec.HolderIdentity)
	}

	if err := events.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	endWriting()
	if err := <-written; err != nil {
		t.Error(err)
	}
	list, err := c.Core.CoreV1().Events(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{} // text → source
	for _, event := range list.Items {
		if event.Reason != "LeaderElection" || event.Type != corev1.EventTypeNormal || event.InvolvedObject.Kind != "Lease" {
			t.Errorf("event %s %s of %s", event.Type, event.Reason, event.InvolvedObject.Kind)
		}
		got[event.Message] = event.Source.Component
	}
	for text, source := range map[string]string{
		"a became leader": "mock.csi.test/a", "a stopped leading": "mock.csi.test/a",
		"b became leader": "mock.csi.test/b", "b stopped leading": "mock.csi.test/b",
	} {
		if got[text] != source {
			t.Errorf("event %q is from %q, want %q", text, got[text], source)
		}
	}
}

// A holder that died is followed when its own lease has run out, and not before.
func TestLeaseOfTheDeadIsTakenOver(t *testing.T) {
	t.Parallel()
	c := clients(t)
	ns := newNamespace(t, c.Core)
	writeLease(t, c.Core, ns, "dead", 4)
	begin := time.Now()
	a := startReplica(t, c.Lease, ns, "a", seldom, nil)
	eventually(t, "a leads", a.leads.Load)
	if took := time.Since(begin); took < 4*time.Second {
		t.Errorf("a led after %s, before the 4s of the lease were over", took)
	}
	if got := *readLease(t, c.Core, ns).Spec.LeaseTransitions; got != 1 {
		t.Errorf("%d transitions, want 1", got)
	}
	a.end(t)
}

// A container that was restarted in its pod finds its own name.
func TestLeaseOfTheSamePodIsTakenAtOnce(t *testing.T) {
	t.Parallel()
	c := clients(t)
	ns := newNamespace(t, c.Core)
	writeLease(t, c.Core, ns, "a", 3600)
	a := startReplica(t, c.Lease, ns, "a", seldom, nil)
	eventually(t, "a leads", a.leads.Load)
	a.end(t)
}

// Somebody else in the lease ends the term, and is left alone.
func TestStolenLeaseEndsTheTerm(t *testing.T) {
	t.Parallel()
	c := clients(t)
	ns := newNamespace(t, c.Core)
	a := startReplica(t, c.Lease, ns, "a", often, nil)
	eventually(t, "a leads", a.leads.Load)
	leases := c.Core.CoordinationV1().Leases(ns)
	if err := controlplane.Modify(t.Context(), readLease(t, c.Core, ns).Name, leases.Get, leases.Update, func(lease *coordinationv1.Lease) {
		lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds = new("thief"), new(int32(3600))
	}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-a.done:
		if !errors.Is(err, process.ErrLeaseLost) {
			t.Errorf("Run = %v, want ErrLeaseLost", err)
		}
	case <-time.After(patience):
		t.Fatal("the term does not end")
	}
	if got := *readLease(t, c.Core, ns).Spec.HolderIdentity; got != "thief" {
		t.Errorf("the lease is held by %q, want the thief", got)
	}
}

// leaseAccount makes a service account of that name with those rights to leases, and returns a client of it.
func leaseAccount(t *testing.T, admin kubernetes.Interface, ns, name string, verbs ...string) kubernetes.Interface {
	t.Helper()
	if _, err := admin.CoreV1().ServiceAccounts(ns).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	allowLeases(t, admin, ns, name, verbs...)
	config, err := controlplane.Shared(t).ServiceAccountConfig(t.Context(), ns, name)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func allowLeases(t *testing.T, admin kubernetes.Interface, ns, name string, verbs ...string) {
	t.Helper()
	if len(verbs) == 0 {
		return
	}
	meta := metav1.ObjectMeta{Name: name}
	role := &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: verbs}}}
	if _, err := admin.RbacV1().Roles(ns).Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: ns, Name: name}},
	}
	if _, err := admin.RbacV1().RoleBindings(ns).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// With the three verbs that the original uses, and no watch, everything works, only later.
func TestLeaseWithoutTheRightToWatch(t *testing.T) {
	t.Parallel()
	c := clients(t)
	ns := newNamespace(t, c.Core)
	client := leaseAccount(t, c.Core, ns, "no-watch", "get", "create", "update")
	a := startReplica(t, client, ns, "a", often, nil)
	eventually(t, "a leads", a.leads.Load)
	b := startReplica(t, client, ns, "b", often, nil)
	eventually(t, "b stands by", func() bool { return strings.Contains(b.log(), "Standing by") })
	a.end(t)
	eventually(t, "b leads", b.leads.Load)
	b.end(t)
	if log := b.log(); strings.Contains(log, "may not be used") {
		t.Errorf("a missing right to watch is told as an error:\n%s", log)
	}
}

// Without any right it says which rule is missing, stays alive, and leads once the rule is there.
func TestLeaseThatIsForbidden(t *testing.T) {
	t.Parallel()
	c := clients(t)
	ns := newNamespace(t, c.Core)
	client := leaseAccount(t, c.Core, ns, "nothing")
	a := startReplica(t, client, ns, "a", often, nil)
	eventually(t, "the rule is named", func() bool {
		return strings.Contains(a.log(), "The leader lease may not be used") && strings.Contains(a.log(), "coordination.k8s.io")
	})
	if err := a.Healthy(); err != nil {
		t.Errorf("a contender is unhealthy: %v", err)
	}
	allowLeases(t, c.Core, ns, "nothing", "get", "list", "watch", "create", "update")
	eventually(t, "a leads", a.leads.Load)
	a.end(t)
}
