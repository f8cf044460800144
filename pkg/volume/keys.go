package volume

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Keys are patterns for the keys of labels or annotations: a key, or a prefix with all its keys as in
// "example.com/*". Make them with ParseKeys. The zero value matches nothing.
type Keys []string

// allOf stands at the end of a pattern for all keys of a prefix.
const allOf = "/*"

// ParseKeys returns the patterns sorted and without duplicates, nil for none. The error joins one for each pattern
// that could match no key.
func ParseKeys(patterns []string) (Keys, error) {
	var errs []error
	for _, pattern := range patterns {
		errs = append(errs, checkPattern(pattern))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	keys := Keys(slices.Clone(patterns))
	slices.Sort(keys)
	return slices.Clip(slices.Compact(keys)), nil
}

func checkPattern(pattern string) error {
	key := pattern
	if prefix, all := strings.CutSuffix(pattern, allOf); all {
		key = prefix + "/any"
	}
	if strings.Contains(key, "*") {
		return fmt.Errorf("%q: a * stands for all keys of one prefix and for nothing else, as in example.com/*", pattern)
	}
	// Annotations may have letters of both cases in their prefix, too.
	if problems := validation.IsQualifiedName(strings.ToLower(key)); len(problems) > 0 {
		return fmt.Errorf("%q is not a key, and not a prefix as in example.com/*: %s", pattern, strings.Join(problems, "; "))
	}
	return nil
}

// Has reports whether a pattern matches the key.
func (k Keys) Has(key string) bool {
	for _, pattern := range k {
		if prefix, all := strings.CutSuffix(pattern, "*"); pattern == key || (all && strings.HasPrefix(key, prefix)) {
			return true
		}
	}
	return false
}
