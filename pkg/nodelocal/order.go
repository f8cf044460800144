package nodelocal

import (
	"time"

	"github.com/cespare/xxhash/v2"
	"k8s.io/apimachinery/pkg/types"
)

// Order is the place of this node among those that may take a claim. The zero value means that it is not known.
type Order struct {
	// Place counts from zero, and is below Of.
	Place int
	// Of is how many nodes there are, this one included; zero: not known.
	Of int
}

// OrderOf returns the place of a node among the nodes for the claim with that UID; the zero Order when the node is
// not among them. The names must differ. Instances that know the same nodes agree on who is at which place without a
// word; a node that comes or goes moves the others by one place at most; each node is the first for as many claims
// (rendezvous hashing). It must stay the same for ever: while a fleet is upgraded, two releases share the claims.
func OrderOf(uid types.UID, node string, nodes []string) Order {
	own, order, known := weight(uid, node), Order{Of: len(nodes)}, false
	for _, other := range nodes {
		if other == node {
			known = true
			continue
		}
		if w := weight(uid, other); w > own || (w == own && other < node) {
			order.Place++
		}
	}
	if !known {
		return Order{}
	}
	return order
}

func weight(uid types.UID, node string) uint64 {
	var d xxhash.Digest
	d.Reset()
	_, _ = d.WriteString(string(uid)) // never fails
	_, _ = d.WriteString("/")
	_, _ = d.WriteString(node)
	return d.Sum64()
}

// first returns the wait before the first try. The first node does not wait. The others follow in the second half of
// base (or of limit, if that is less), one after the other: they act when those before them did not, because they
// are down, full or behind. So every node acts within base, as when all waits are random.
func (o Order) first(base, limit time.Duration) time.Duration {
	if o.Place == 0 {
		return 0
	}
	half := min(base, limit) / 2
	return half + time.Duration(float64(half)*float64(o.Place)/float64(o.Of))
}
