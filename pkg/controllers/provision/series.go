package provision

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-sidecars/external-provisioner/pkg/text"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

const (
	// maxSeries is how many pairs of labels are kept apart that are not those of an existing class and a known kind.
	maxSeries = 200
	// maxLabelBytes is the longest value of a label: that of the longest name of an object.
	maxLabelBytes = 253
	// otherLabel is the value of labels beyond maxSeries. No object and no kind has that name.
	otherLabel = "(other)"
)

// labelPair is the values of the labels class and source; source is "" in families that have only a class.
type labelPair struct{ class, source string }

// series bounds the label values that users choose. A claim may name any class and any kind of source, in any bytes, and the
// metrics library panics for a value that is no valid UTF-8. So values are made valid and cut. A pair that is not one of an
// existing class and a known kind is kept while there is an object with it, and at most maxSeries of them are; others are
// counted as otherLabel. Safe for concurrent use.
type series struct {
	// exists says whether there is a class of that name, alive whether there is an object with that UID.
	exists func(class string) bool
	alive  func(uid types.UID) bool
	// drop removes a pair from the metrics, dropClass all pairs of a class. mu is held.
	drop      func(labelPair)
	dropClass func(class string)

	mu    sync.Mutex
	pairs map[labelPair]map[types.UID]struct{} // pair that a user has chosen → the objects with it
}

// count calls inc with the label values for an object with that pair.
func (s *series) count(uid types.UID, pair labelPair, inc func(labelPair)) {
	pair = labelPair{text.Cut(pair.class, maxLabelBytes), text.Cut(pair.source, maxLabelBytes)}
	s.mu.Lock()
	defer s.mu.Unlock()
	usual := (pair.class == "" || s.exists(pair.class)) && isKnownSource(pair.source)
	if !usual && !s.admit(uid, pair) {
		pair.class = otherLabel
		if pair.source != "" {
			pair.source = otherLabel
		}
	}
	inc(pair) // with mu held, so that nothing is counted in a pair that has just been dropped
}

// countClass calls inc with the name of the class, or with "" when there is none of that name.
func (s *series) countClass(class string, inc func(class string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.exists(class) {
		class = ""
	}
	inc(class)
}

// admit reports whether the pair is kept apart, and remembers the object. An object that is gone is not remembered: nobody
// would tell when to forget it. mu is held.
func (s *series) admit(uid types.UID, pair labelPair) bool {
	objects, known := s.pairs[pair]
	if !s.alive(uid) {
		return known
	}
	if !known {
		if len(s.pairs) >= maxSeries {
			return false
		}
		objects = map[types.UID]struct{}{}
		s.pairs[pair] = objects
	}
	objects[uid] = struct{}{}
	return true
}

// forget drops the pairs that only the object with that UID had, which is gone.
func (s *series) forget(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for pair, objects := range s.pairs {
		if delete(objects, uid); len(objects) == 0 {
			delete(s.pairs, pair)
			s.drop(pair)
		}
	}
}

// forgetClass drops all pairs of a class that is gone. Those of claims that still name it come back with the next count.
func (s *series) forgetClass(class string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropClass(class)
}

// isKnownSource reports whether the kind is one that volumes can be made from.
func isKnownSource(kind string) bool {
	return kind == "" || kind == wellknown.KindSnapshot || kind == wellknown.KindClaim
}
