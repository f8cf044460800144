package topology

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// MaxTerms is how many terms one list of allowed topologies may expand to, before duplicates are dropped. Every term
// is sent twice; far below this number drivers refuse the message for its size.
const MaxTerms = 20_000

// Expand returns the segments that a class's allowedTopologies stand for, canonical: for each entry one
// segment for each way to choose one value an expression. An entry without expressions stands for nothing.
// When there would be more than MaxTerms it returns an error, before it makes any.
func Expand(allowed []corev1.TopologySelectorTerm) ([]Segment, error) {
	size, err := expandedSize(allowed)
	if err != nil {
		return nil, err
	}
	segments := make([]Segment, 0, size)
	for _, entry := range allowed {
		if expressions := effective(entry); len(expressions) > 0 {
			segments = appendProduct(segments, expressions)
		}
	}
	return Canonical(segments), nil
}

// expandedSize counts the terms that allowed stands for, duplicates included.
func expandedSize(allowed []corev1.TopologySelectorTerm) (int, error) {
	total := 0
	for _, entry := range allowed {
		expressions := effective(entry)
		if len(expressions) == 0 {
			continue
		}
		size := 1
		for _, e := range expressions {
			if size *= len(e.Values); size > MaxTerms {
				break
			}
		}
		if total += size; total > MaxTerms {
			return 0, fmt.Errorf("allowedTopologies stand for more than %d terms", MaxTerms)
		}
	}
	return total, nil
}

// Satisfies reports whether a segment of Expand(allowed) is in segment, without expanding anything.
func Satisfies(segment Segment, allowed []corev1.TopologySelectorTerm) bool {
	return slices.ContainsFunc(allowed, func(entry corev1.TopologySelectorTerm) bool {
		expressions := effective(entry)
		for _, e := range expressions {
			value, ok := segment.Get(e.Key)
			if !ok || !slices.Contains(e.Values, value) {
				return false
			}
		}
		return len(expressions) > 0
	})
}

// standsForNothing reports whether Expand(allowed) is empty.
func standsForNothing(allowed []corev1.TopologySelectorTerm) bool {
	return !slices.ContainsFunc(allowed, func(entry corev1.TopologySelectorTerm) bool { return len(effective(entry)) > 0 })
}

// effective returns the expressions of an entry that count: an expression without values, which API
// validation refuses, takes what stands before it with it.
func effective(entry corev1.TopologySelectorTerm) []corev1.TopologySelectorLabelRequirement {
	expressions := entry.MatchLabelExpressions
	for i, expression := range slices.Backward(expressions) {
		if len(expression.Values) == 0 {
			return expressions[i+1:]
		}
	}
	return expressions
}

// appendProduct appends a segment for each choice of one value an expression.
func appendProduct(segments []Segment, expressions []corev1.TopologySelectorLabelRequirement) []Segment {
	chosen := make([]pair, len(expressions))
	var choose func(int)
	choose = func(i int) {
		if i == len(expressions) {
			segments = append(segments, segmentOfPairs(slices.Clone(chosen)))
			return
		}
		for _, value := range expressions[i].Values {
			chosen[i] = pair{expressions[i].Key, value}
			choose(i + 1)
		}
	}
	choose(0)
	return segments
}
