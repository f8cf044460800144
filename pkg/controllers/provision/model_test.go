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

func explore(mode markingMode) *model {
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
	where := map[memory]string{calling: "in a call", waiting: "unanswered", unsaved: "before the PersistentVolume is saved"}[before.mem]
	switch {
	case before.mode == never:
		return where
	case before.claim == gone:
		return where + ", the claim was deleted before it was marked"
	case !before.wanted:
		return where + ", before the delay has passed"
	}
	return where + ", the marker is on its way"
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

// The invariant of crash safety: a volume that exists, or may come to exist, has a PersistentVolume, or a marked
// claim, or a process that remembers it, or an event that asks people to look after it.
func TestNoVolumeIsForgotten(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		mode markingMode
		want []string // the windows of a kill in which it does not hold
	}{
		"with strict marking there is no window": {strict, nil},
		"by default only before the marker is there": {byDefault, []string{
			"before the PersistentVolume is saved, before the delay has passed",
			"before the PersistentVolume is saved, the claim was deleted before it was marked",
			"before the PersistentVolume is saved, the marker is on its way",
			"in a call, before the delay has passed",
			"in a call, the claim was deleted before it was marked",
			"in a call, the marker is on its way",
			"unanswered, the claim was deleted before it was marked",
			"unanswered, the marker is on its way",
		}},
		"without markers all that a process knows": {never, []string{"before the PersistentVolume is saved", "in a call", "unanswered"}},
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
				if tc.mode == strict && s.backend != nothing && !s.pv && !s.marked && !s.told {
					t.Fatalf("a volume without PersistentVolume, marker and event: %q", m.way(s))
				}
			}
		})
	}
}

// From wherever it got to, the story can end well, if it was not in a window: without claim, volume, PersistentVolume
// and marker. And a claim that goes is never held for nothing.
func TestEveryStoryCanEnd(t *testing.T) {
	t.Parallel()
	for _, mode := range []markingMode{byDefault, strict, never} {
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
			if s.claim == gone && s.backend == nothing && !s.pv && !s.dead && s.mem == blank {
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
			lost := s.claim == gone && s.backend == volume1 && !s.remembered()
			if ends[s] == lost {
				t.Fatalf("mode %d: can end %v, lost %v: %q", mode, ends[s], lost, m.way(s))
			}
		}
	}
}
