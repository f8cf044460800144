package nodelocal

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// fleet returns the names of nodes.
func fleet(size int) []string {
	nodes := make([]string, size)
	for i := range nodes {
		nodes[i] = fmt.Sprintf("n%d", i)
	}
	return nodes
}

// placesOf returns the nodes in the order that they compute by themselves, each from a list of another order.
func placesOf(t *testing.T, uid types.UID, nodes []string) []string {
	t.Helper()
	inOrder, seen := make([]string, len(nodes)), slices.Clone(nodes)
	for _, node := range nodes {
		rand.Shuffle(len(seen), func(i, j int) { seen[i], seen[j] = seen[j], seen[i] })
		order := OrderOf(uid, node, seen)
		if order.Of != len(nodes) || order.Place < 0 || order.Place >= len(nodes) {
			t.Fatalf("claim %s: node %s is at %+v of %d", uid, node, order, len(nodes))
		}
		if other := inOrder[order.Place]; other != "" {
			t.Fatalf("claim %s: nodes %s and %s are both at place %d", uid, node, other, order.Place)
		}
		inOrder[order.Place] = node
	}
	return inOrder
}

// Each node has a place of its own, so exactly one is the first, and every node is the first about as often.
func TestEveryNodeHasAPlaceOfItsOwn(t *testing.T) {
	t.Parallel()
	const claims = 600
	for _, size := range []int{1, 2, 3, 12} {
		firsts := map[string]int{}
		for i := range claims {
			firsts[placesOf(t, types.UID(fmt.Sprintf("%08x-uid", i)), fleet(size))[0]]++
		}
		for _, node := range fleet(size) {
			if got, fair := firsts[node], claims/size; got < fair/2 || got > fair*2 {
				t.Errorf("%d nodes: %s is first for %d of %d claims, want about %d", size, node, got, claims, fair)
			}
		}
	}
}

// Without a node the others stay in their order, so instances that know of it and those that do not mostly agree.
func TestANodeThatGoesMovesNobodyElse(t *testing.T) {
	t.Parallel()
	for i := range 200 {
		uid := types.UID(fmt.Sprintf("uid-%d", i))
		before := placesOf(t, uid, fleet(12))
		gone := before[i%12]
		left := slices.DeleteFunc(slices.Clone(before), func(n string) bool { return n == gone })
		after := placesOf(t, uid, slices.DeleteFunc(fleet(12), func(n string) bool { return n == gone }))
		if !slices.Equal(left, after) {
			t.Errorf("claim %s without %s: order %v, want %v", uid, gone, after, left)
		}
	}
}

// The order is that of every release: a fleet in the middle of an upgrade has one.
func TestTheOrderStaysTheSame(t *testing.T) {
	t.Parallel()
	for uid, want := range map[types.UID][]string{
		"9d4c2f6e-0001": {"n2", "n0", "n1", "n3"},
		"9d4c2f6e-0002": {"n0", "n1", "n2", "n3"},
	} {
		if got := placesOf(t, uid, fleet(4)); !slices.Equal(got, want) {
			t.Errorf("claim %s: order %q, want %q", uid, got, want)
		}
	}
}

func TestANodeThatIsNotAmongThemHasNoPlace(t *testing.T) {
	t.Parallel()
	for name, nodes := range map[string][]string{"among others": fleet(3), "nobody is known": nil} {
		if got := OrderOf("uid", "here", nodes); got != (Order{}) {
			t.Errorf("%s: %+v, want the zero Order", name, got)
		}
	}
}

// Whoever is down or full, the next one tries within the base delay, and never together with another.
func TestTheNextNodeActsWithinTheBaseDelay(t *testing.T) {
	t.Parallel()
	const base, limit, size = 20 * time.Second, time.Minute, 12
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range 50 {
		uid := types.UID(fmt.Sprintf("uid-%d", i))
		var waits []time.Duration
		for _, node := range placesOf(t, uid, fleet(size)) {
			race, err := NewRace(RaceConfig{Base: base, Max: limit, Random: func() float64 { t.Error("a random number was drawn"); return 0 }})
			if err != nil {
				t.Fatal(err)
			}
			waits = append(waits, race.Enter(uid, now, OrderOf(uid, node, fleet(size))))
		}
		if waits[0] != 0 || waits[1] <= base/2 || waits[size-1] >= base {
			t.Errorf("claim %s: waits %v, want none for the first, and the others between %s and %s", uid, waits, base/2, base)
		}
		for n := 1; n < size; n++ {
			if waits[n]-waits[n-1] < base/2/size {
				t.Errorf("claim %s: the node at place %d tries %s after the one before", uid, n, waits[n]-waits[n-1])
			}
		}
	}
}

func TestEnter(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		base, limit time.Duration
		order       Order
		want, again time.Duration // again is with a random number of a half
	}{
		"the order is not known": {20 * time.Second, time.Minute, Order{}, 10 * time.Second, 30 * time.Second},
		"first":                  {20 * time.Second, time.Minute, Order{0, 4}, 0, 30 * time.Second},
		"second":                 {20 * time.Second, time.Minute, Order{1, 4}, 12500 * time.Millisecond, 30 * time.Second},
		"last":                   {20 * time.Second, time.Minute, Order{3, 4}, 17500 * time.Millisecond, 30 * time.Second},
		"no base":                {0, time.Minute, Order{3, 4}, 0, 0},
		"max below base":         {20 * time.Second, 4 * time.Second, Order{2, 4}, 3 * time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			race, err := NewRace(RaceConfig{Base: tc.base, Max: tc.limit, Random: func() float64 { return 0.5 }})
			if err != nil {
				t.Fatal(err)
			}
			if race.Has("a") {
				t.Error("it is in the race before it entered")
			}
			if got := race.Enter("a", now, tc.order); got != tc.want {
				t.Errorf("first wait %s, want %s", got, tc.want)
			}
			if got := race.Enter("a", now, Order{}); got != tc.want || !race.Has("a") {
				t.Errorf("entered again, the wait is %s, want %s as before", got, tc.want)
			}
			if got := race.Again("a", now); got != tc.again {
				t.Errorf("next wait %s, want %s", got, tc.again)
			}
		})
	}
}
