package provision

import (
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-sidecars/external-provisioner/pkg/nodelocal"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// peers are the nodes of a fleet, known after some questions.
type peers struct {
	nodes []string
	after int64
	asked atomic.Int64
}

func (p *peers) Ready() bool     { return p.asked.Add(1) > p.after }
func (p *peers) Nodes() []string { return p.nodes }

// withPeers makes the controller that of the node "here" among others; whoever is not the first draws a wait of 20 s
// at random, or waits for 10 to 20 s.
func withPeers(p *peers) func(*Config) {
	return func(cfg *Config) {
		onNode(cfg)
		race, err := nodelocal.NewRace(nodelocal.RaceConfig{Base: 20 * time.Second, Max: time.Minute, Random: func() float64 { return 0 }})
		if err != nil {
			panic(err)
		}
		cfg.Node.Race = race
		if p != nil {
			cfg.Node.Peers = p
		}
	}
}

// uidAt returns a UID of a claim for which the node "here" is at that place among the nodes.
func uidAt(t *testing.T, place int, nodes []string) string {
	t.Helper()
	for c := 'a'; c <= 'z'; c++ {
		if nodelocal.OrderOf(types.UID(c), "here", nodes).Place == place {
			return string(c)
		}
	}
	t.Fatalf("no claim for which the node is at place %d", place)
	return ""
}

// The first node takes a claim at once, the second half a base delay later, if the first did not. Where the order is
// not known waits are random.
func TestNodesTakeClaimsInTurn(t *testing.T) {
	t.Parallel()
	nodes := []string{"here", "there", "yonder"}
	first, second := uidAt(t, 0, nodes), uidAt(t, 1, nodes)
	allowed := []corev1.TopologySelectorTerm{{}}
	for name, tc := range map[string]struct {
		uid     string
		peers   *peers
		allowed []corev1.TopologySelectorTerm
		within  time.Duration // from before until then the claim is taken
		after   time.Duration
	}{
		"the first":                        {uid: first, peers: &peers{nodes: nodes}, within: 100 * time.Millisecond},
		"the first, known later":           {uid: first, peers: &peers{nodes: nodes, after: 20}, after: 900 * time.Millisecond, within: 1100 * time.Millisecond},
		"the second":                       {uid: second, peers: &peers{nodes: nodes}, after: 13 * time.Second, within: 14 * time.Second},
		"the second, of two by now":        {uid: second, peers: &peers{nodes: []string{"here", "there"}}, within: 16 * time.Second},
		"nobody can be read":               {uid: first, peers: &peers{}, after: 19 * time.Second, within: 21 * time.Second},
		"this node is not among them":      {uid: first, peers: &peers{nodes: nodes[1:]}, after: 19 * time.Second, within: 21 * time.Second},
		"nobody is asked":                  {uid: first, after: 19 * time.Second, within: 21 * time.Second},
		"the class has allowed topologies": {uid: first, peers: &peers{nodes: nodes}, allowed: allowed, after: 19 * time.Second, within: 21 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, withPeers(tc.peers), func(t *testing.T, w *world) {
				class := fixture.Class("slow").UID("class-2").Provisioner(driverName).Obj()
				class.AllowedTopologies = tc.allowed
				w.put(class)
				w.put(fixture.Claim("c").UID(tc.uid).Class("slow").For(driverName).Obj())
				w.pass(tc.after)
				if node := w.live("c").Annotations[wellknown.AnnSelectedNode]; tc.after > 0 && node != "" {
					t.Fatalf("taken within %s", tc.after)
				}
				w.pass(tc.within - tc.after)
				if node := w.live("c").Annotations[wellknown.AnnSelectedNode]; node != "here" {
					t.Errorf("not taken within %s", tc.within)
				}
			})
		})
	}
}
