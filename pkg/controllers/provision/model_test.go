package provision

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// model is every state that can be reached, with the way to it.
type model struct {
	from  map[state]move    // state → the step to it, and the state that was before
	next  map[state][]state // state → what may follow
	order []state
}

func explore(mode recordMode) *model {
	begin := state{mode: mode}
	m := &model{from: map[state]move{begin: {}}, next: map[state][]state{}, order: []state{begin}}
	for i := 0; i < len(m.order); i++ {
		s := m.order[i]
		for _, mv := range s.moves() {
			m.next[s] = append(m.next[s], mv.next)
			if _, known := m.from[mv.next]; !known {
				m.from[mv.next] = move{name: mv.name, next: s}
				m.order = append(m.order, mv.next)
			}
		}
	}
	return m
}

// way returns the steps from the beginning to s.
func (m *model) way(s state) []string {
	var steps []string
	for m.from[s].name != "" {
		steps = append(steps, m.from[s].name)
		s = m.from[s].next
	}
	slices.Reverse(steps)
	return steps
}

// window names the moment at which a process died that alone knew of a volume.
func window(before state) string {
	return map[memory]string{calling: "in a call", waiting: "unanswered", unsaved: "before the PersistentVolume is saved"}[before.mem]
}

// windows returns the moments at which a kill loses a volume, each with the shortest story.
func (m *model) windows() map[string][]string {
	found := map[string][]string{}
	for _, before := range m.order {
		if before.dead {
			continue
		}
		for _, after := range m.next[before] {
			if after.dead && before.remembered() && !after.remembered() {
				name := window(before)
				if found[name] == nil {
					found[name] = append(m.way(before), "the process is killed")
				}
			}
		}
	}
	return found
}

// The invariant of crash safety: a volume that exists, or may come to exist, has a PersistentVolume, or a Lease that says its
// operation, or a process that remembers it, or an event that asks people to look after it.
func TestNoVolumeIsForgotten(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		mode recordMode
		want []string // the windows of a kill in which it does not hold
	}{
		"with Leases there is no window":          {recording, nil},
		"without Leases all that a process knows": {unprotected, []string{"before the PersistentVolume is saved", "in a call", "unanswered"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := explore(tc.mode)
			if len(m.order) < 50 {
				t.Fatalf("only %d states: the model does not move", len(m.order))
			}
			windows := m.windows()
			if diff := cmp.Diff(tc.want, slices.Sorted(maps.Keys(windows))); diff != "" {
				t.Errorf("windows (-want +got):\n%s", diff)
				for window, story := range windows {
					t.Logf("%s: %q", window, story)
				}
			}
			for _, s := range m.order {
				// While a process lives it forgets nothing itself.
				for _, after := range m.next[s] {
					if s.remembered() && !after.remembered() && !after.dead {
						t.Fatalf("a living process forgets: %q, then %+v", m.way(s), after)
					}
				}
				if tc.mode == recording && s.backend != nothing && !s.pv && !s.lease && !s.told {
					t.Fatalf("a volume without PersistentVolume, Lease and event: %q", m.way(s))
				}
				// A Lease that says a deleted volume's operation would bring that volume back.
				if s.deleting && s.lease {
					t.Fatalf("a volume was deleted while a Lease says its operation: %q", m.way(s))
				}
			}
		})
	}
}

// From wherever it got to, the story can end well, if it was not in a window: without claim, volume, PersistentVolume
// and operation.
func TestEveryStoryCanEnd(t *testing.T) {
	t.Parallel()
	for _, mode := range []recordMode{recording, unprotected} {
		m := explore(mode)
		before := map[state][]state{}
		for s, after := range m.next {
			for _, n := range after {
				before[n] = append(before[n], s)
			}
		}
		ends := map[state]bool{}
		var queue []state
		for _, s := range m.order {
			if s.gone && s.backend == nothing && !s.pv && !s.lease && !s.dead && s.mem == blank {
				ends[s] = true
				queue = append(queue, s)
			}
		}
		for len(queue) > 0 {
			s := queue[0]
			queue = queue[1:]
			for _, b := range before[s] {
				if !ends[b] {
					ends[b] = true
					queue = append(queue, b)
				}
			}
		}
		for _, s := range m.order {
			lost := s.gone && s.backend == volume1 && !s.remembered()
			if ends[s] == lost {
				t.Fatalf("mode %d: can end %v, lost %v: %q", mode, ends[s], lost, m.way(s))
			}
		}
	}
}
