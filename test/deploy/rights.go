package deploy

import (
	"fmt"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
)

// Right is one verb on one resource.
type Right struct {
	// Group and Resource are as in a rule; Group is "" for the core group.
	Group, Resource string
	Verb            string
}

func (r Right) String() string {
	if r.Group == "" {
		return r.Verb + " " + r.Resource
	}
	return fmt.Sprintf("%s %s.%s", r.Verb, r.Resource, r.Group)
}

// Rights returns what the rules of a Role or ClusterRole give, one by one; nil for all other kinds.
func Rights(tb testing.TB, object Object) []Right {
	tb.Helper()
	var rules []rbacv1.PolicyRule
	switch object.GetKind() {
	case "ClusterRole":
		rules = Decode[rbacv1.ClusterRole](tb, object).Rules
	case "Role":
		rules = Decode[rbacv1.Role](tb, object).Rules
	}
	var rights []Right
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					rights = append(rights, Right{Group: group, Resource: resource, Verb: verb})
				}
			}
		}
	}
	return rights
}
