package secret

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	tokenPVName         = "pv.name"
	tokenClaimNamespace = "pvc.namespace"
	tokenClaimName      = "pvc.name"
	annotationOpen      = "pvc.annotations['"
	annotationClose     = "']"
)

// expandNamespace resolves the template of a namespace. It may depend only on what the claim's author does not
// choose freely; the claim's name and annotations are no tokens here, and must never become some.
func expandNamespace(template string, n Names) (string, error) {
	namespace, err := expand(template, n.namespaceToken)
	if err != nil {
		return "", err
	}
	if problems := validation.IsDNS1123Label(namespace); len(problems) > 0 {
		return "", invalid(template, namespace, "namespace", problems)
	}
	return namespace, nil
}

// expandName resolves the template of a Secret's name.
func expandName(template string, n Names) (string, error) {
	name, err := expand(template, n.nameToken)
	if unknown, ok := errors.AsType[*unknownTokensError](err); ok && unknown.onlyAnnotations() {
		return "", fmt.Errorf("%w: %w", ErrNoAnnotation, err)
	}
	if err != nil {
		return "", err
	}
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return "", invalid(template, name, "secret name", problems)
	}
	return name, nil
}

func (n Names) namespaceToken(token string) (string, bool) {
	switch token {
	case tokenPVName:
		return n.PVName, true
	case tokenClaimNamespace:
		return n.ClaimNamespace, true
	}
	return "", false
}

func (n Names) nameToken(token string) (string, bool) {
	if token == tokenClaimName {
		return n.ClaimName, true
	}
	if key, ok := annotationKey(token); ok {
		value, found := n.ClaimAnnotations[key]
		return value, found
	}
	return n.namespaceToken(token)
}

// annotationKey returns the key of a token that stands for an annotation of the claim.
func annotationKey(token string) (string, bool) {
	if key, ok := strings.CutPrefix(token, annotationOpen); ok {
		return strings.CutSuffix(key, annotationClose)
	}
	return "", false
}

// unknownTokensError names the tokens of a template that stand for nothing.
type unknownTokensError struct {
	template string
	tokens   []string
}

func (e *unknownTokensError) Error() string {
	return fmt.Sprintf("template %q has invalid tokens: %q", e.template, e.tokens)
}

// onlyAnnotations reports whether another claim, one with more annotations, could make all the tokens known.
func (e *unknownTokensError) onlyAnnotations() bool {
	return !slices.ContainsFunc(e.tokens, func(token string) bool { _, ok := annotationKey(token); return !ok })
}

// expand replaces ${token} and $token by what lookup says. Values are not expanded again. All unknown tokens
// are named at once, in the order of their first use.
func expand(template string, lookup func(token string) (string, bool)) (string, error) {
	if brokenSyntax(template) {
		return "", fmt.Errorf("template %q has a ${ without a token or without its }", template)
	}
	var unknown []string
	resolved := os.Expand(template, func(token string) string {
		value, ok := lookup(token)
		if !ok && !slices.Contains(unknown, token) {
			unknown = append(unknown, token)
		}
		return value
	})
	if len(unknown) > 0 {
		return "", &unknownTokensError{template: template, tokens: unknown}
	}
	return resolved, nil
}

// brokenSyntax reports a "${" that os.Expand would swallow without a word: one that is empty or not closed.
// It walks a template as os.Expand does.
func brokenSyntax(template string) bool {
	for i := 0; i < len(template)-1; i++ {
		if template[i] != '$' {
			continue
		}
		switch template[i+1] {
		case '$': // a token of its own
			i++
		case '{':
			length := strings.IndexByte(template[i+2:], '}')
			if length <= 0 {
				return true
			}
			i += 2 + length
		}
	}
	return false
}

func invalid(template, resolved, what string, problems []string) error {
	if resolved == template {
		return fmt.Errorf("%q is not a valid %s: %s", template, what, strings.Join(problems, ", "))
	}
	return fmt.Errorf("template %q resolves to %q, which is not a valid %s: %s", template, resolved, what, strings.Join(problems, ", "))
}
