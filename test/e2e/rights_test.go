package e2e

import (
	"context"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/deploy"
	"github.com/csi-sidecars/external-provisioner/test/sidecar"
)

// rights are what a service account may do: in the whole cluster, and in its own namespace.
type rights struct{ cluster, own []deploy.Right }

// shippedRights returns what these manifests give.
func shippedRights(t *testing.T, files ...string) rights {
	t.Helper()
	var r rights
	for _, object := range deploy.Objects(t, files...) {
		if object.GetKind() == "ClusterRole" {
			r.cluster = append(r.cluster, deploy.Rights(t, object)...)
		} else {
			r.own = append(r.own, deploy.Rights(t, object)...)
		}
	}
	return r
}

// without returns the rights that drop does not name, and how many it took away.
func (r rights) without(drop func(deploy.Right) bool) (rights, int) {
	left := rights{cluster: slices.DeleteFunc(slices.Clone(r.cluster), drop), own: slices.DeleteFunc(slices.Clone(r.own), drop)}
	return left, len(r.cluster) + len(r.own) - len(left.cluster) - len(left.own)
}

// all returns the rights, wherever they hold.
func (r rights) all() []deploy.Right { return slices.Concat(r.cluster, r.own) }

// rules turns rights into the rules of a role.
func rules(all []deploy.Right) []rbacv1.PolicyRule {
	var rules []rbacv1.PolicyRule
	for _, right := range all {
		rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{right.Group}, Resources: []string{right.Resource}, Verbs: []string{right.Verb}})
	}
	return rules
}

// limitedAccount makes a service account with exactly these rights in the world's namespace, waits until the API
// server knows of them, and returns a kubeconfig of it.
func limitedAccount(t *testing.T, w *sidecar.World, r rights) string {
	t.Helper()
	const account = "limited"
	name, o := account+"-"+w.Namespace, metav1.CreateOptions{}
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: w.Namespace, Name: account}}
	roles := w.Client.RbacV1()
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(w.Client.CoreV1().ServiceAccounts(w.Namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, o))
	must(roles.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules(r.cluster)}, o))
	must(roles.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
	}, o))
	must(roles.Roles(w.Namespace).Create(t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: account}, Rules: rules(r.own)}, o))
	must(roles.RoleBindings(w.Namespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: account}, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: account},
	}, o))
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_ = roles.ClusterRoleBindings().Delete(ctx, name, metav1.DeleteOptions{}) // What is left harms nobody.
		_ = roles.ClusterRoles().Delete(ctx, name, metav1.DeleteOptions{})
	})
	waitForRights(t, w, account, r)
	file, err := w.Cluster.ServiceAccountKubeconfig(t.Context(), w.Namespace, account)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// waitForRights waits until the API server, which learns of roles by watching, grants them.
func waitForRights(t *testing.T, w *sidecar.World, account string, r rights) {
	t.Helper()
	config, err := w.Cluster.ServiceAccountConfig(t.Context(), w.Namespace, account)
	if err != nil {
		t.Fatal(err)
	}
	client := kubernetes.NewForConfigOrDie(config)
	for _, right := range r.all() {
		sidecar.Eventually(t, "the account may "+right.String(), func(ctx context.Context) (bool, error) {
			review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
				ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: w.Namespace, Group: right.Group, Resource: right.Resource, Verb: right.Verb},
			}}
			answer, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
			return err == nil && answer.Status.Allowed, err
		})
	}
}

// request is one that the sidecar has sent, as its log tells at -v=6.
type request struct {
	// needs is what the API server checks. A watch that begins with the list stands for both: the list is what
	// older servers are asked for.
	needs  []deploy.Right
	status int
	line   string
}

var response = regexp.MustCompile(`"Response"[^\n]* verb="([A-Z]+)" url="([^"]+)" status="(\d+)[^\n]*`)

// requestsOf reads the requests out of a log; those about no resource are left out.
func requestsOf(t *testing.T, log string) []request {
	t.Helper()
	var all []request
	for _, match := range response.FindAllStringSubmatch(log, -1) {
		address, err := url.Parse(match[2])
		if err != nil {
			t.Fatal(err)
		}
		status, err := strconv.Atoi(match[3])
		if err != nil {
			t.Fatal(err)
		}
		if needs := needsOf(match[1], address); len(needs) > 0 {
			all = append(all, request{needs: needs, status: status, line: match[0]})
		}
	}
	return all
}

func needsOf(method string, address *url.URL) []deploy.Right {
	group, parts := cluster.SplitPath(address.Path)
	if len(parts) == 0 {
		return nil // discovery
	}
	right := deploy.Right{Group: group, Resource: parts[0]}
	query := address.Query()
	verbs := map[string]string{"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "GET": "list"}
	right.Verb = verbs[method]
	switch {
	case method != "GET":
	case len(parts) > 1:
		right.Verb = "get"
	case query.Get("watch") == "true":
		right.Verb = "watch"
		if query.Get("sendInitialEvents") == "true" {
			return []deploy.Right{right, {Group: right.Group, Resource: right.Resource, Verb: "list"}}
		}
	}
	return []deploy.Right{right}
}

func TestRequestsAreReadFromALog(t *testing.T) {
	t.Parallel()
	log := `I1130 05:41:12.1 7 round_trippers.go:632] "Response" logger="claims" key="u" verb="GET" url="https://h:1/api/v1/persistentvolumeclaims?allowWatchBookmarks=true&sendInitialEvents=true&watch=true" status="200 OK" milliseconds=1
I1130 05:41:12.1 7 round_trippers.go:632] "Response" verb="PUT" url="https://h:1/apis/coordination.k8s.io/v1/namespaces/n/leases/a?timeout=5s" status="403 Forbidden" milliseconds=1
I1130 05:41:12.1 7 round_trippers.go:632] "Response" verb="GET" url="https://h:1/apis/storage.k8s.io/v1" status="200 OK" milliseconds=1
I1130 05:41:12.1 7 round_trippers.go:632] "Response" verb="GET" url="https://h:1/api/v1/namespaces/n/pods/p" status="404 Not Found" milliseconds=1
I1130 05:41:12.1 7 round_trippers.go:632] "Response" verb="GET" url="https://h:1/api/v1/nodes?limit=1" status="200 OK" milliseconds=1`
	var got []string
	for _, request := range requestsOf(t, log) {
		for _, right := range request.needs {
			got = append(got, strconv.Itoa(request.status)+" "+right.String())
		}
	}
	want := []string{
		"200 watch persistentvolumeclaims", "200 list persistentvolumeclaims", "403 update leases.coordination.k8s.io", "404 get pods", "200 list nodes",
	}
	if !slices.Equal(want, got) {
		t.Errorf("want %q, got %q", want, got)
	}
}
