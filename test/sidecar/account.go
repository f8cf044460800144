package sidecar

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/csi-sidecars/external-provisioner/test/cluster"
)

// AccountName is the service account of the shipped manifests.
const AccountName = "csi-provisioner"

// Account makes the sidecar's service account in the namespace with exactly the rights of the shipped manifests
// of these features ("base" for rbac-base.yaml), all of them if none is named, and returns a kubeconfig of it.
// What has no namespace gets the namespace's name at the end of its own and is removed when the test ends.
func Account(tb testing.TB, c *cluster.Cluster, namespace string, features ...string) string {
	tb.Helper()
	manifests, err := shipped(features)
	if err != nil {
		tb.Fatal(err)
	}
	a := account{client: c.Client(), namespace: namespace}
	tb.Cleanup(func() { a.remove(context.WithoutCancel(tb.Context())) })
	if err := a.create(tb.Context(), manifests); err != nil {
		tb.Fatal(err)
	}
	file, err := c.ServiceAccountKubeconfig(tb.Context(), namespace, AccountName)
	if err != nil {
		tb.Fatal(err)
	}
	return file
}

// shipped reads the manifests that give the rights for these features.
func shipped(features []string) ([]byte, error) {
	root, err := cluster.RepoRoot()
	if err != nil {
		return nil, err
	}
	if len(features) == 0 {
		features = []string{"*"}
	}
	var all []byte
	for _, feature := range features {
		pattern := filepath.Join(root, "deploy", "kubernetes", "rbac-"+feature+".yaml")
		files, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		if len(files) == 0 {
			return nil, fmt.Errorf("no %s", pattern)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			all = append(append(all, text...), "\n---\n"...)
		}
	}
	return all, nil
}

type account struct {
	client    kubernetes.Interface
	namespace string
	roles     []string
	bindings  []string
}

// create makes the objects of the manifests, all in one namespace.
func (a *account) create(ctx context.Context, manifests []byte) error {
	made := false
	documents := bytes.SplitSeq(manifests, []byte("\n---"))
	for document := range documents {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(document, &kind); err != nil {
			return fmt.Errorf("read a manifest: %w", err)
		}
		err := a.createOne(ctx, kind.Kind, document)
		if err != nil {
			return fmt.Errorf("create %s of the manifests: %w", kind.Kind, err)
		}
		made = made || kind.Kind == "ServiceAccount"
	}
	if !made {
		return errors.New("the manifests have no ServiceAccount")
	}
	return nil
}

func (a *account) createOne(ctx context.Context, kind string, document []byte) error {
	o := metav1.CreateOptions{}
	rbac := a.client.RbacV1()
	switch kind {
	case "ServiceAccount":
		return create(document, func(object *corev1.ServiceAccount) error {
			object.Namespace = a.namespace
			_, err := a.client.CoreV1().ServiceAccounts(a.namespace).Create(ctx, object, o)
			return err
		})
	case "ClusterRole":
		return create(document, func(object *rbacv1.ClusterRole) error {
			object.Name = a.own(object.Name)
			a.roles = append(a.roles, object.Name)
			_, err := rbac.ClusterRoles().Create(ctx, object, o)
			return err
		})
	case "ClusterRoleBinding":
		return create(document, func(object *rbacv1.ClusterRoleBinding) error {
			object.Name, object.RoleRef.Name = a.own(object.Name), a.own(object.RoleRef.Name)
			a.move(object.Subjects)
			a.bindings = append(a.bindings, object.Name)
			_, err := rbac.ClusterRoleBindings().Create(ctx, object, o)
			return err
		})
	case "Role":
		return create(document, func(object *rbacv1.Role) error {
			object.Namespace = a.namespace
			_, err := rbac.Roles(a.namespace).Create(ctx, object, o)
			return err
		})
	case "RoleBinding":
		return create(document, func(object *rbacv1.RoleBinding) error {
			object.Namespace = a.namespace
			a.move(object.Subjects)
			_, err := rbac.RoleBindings(a.namespace).Create(ctx, object, o)
			return err
		})
	}
	return nil
}

func create[T any](document []byte, send func(*T) error) error {
	object := new(T)
	if err := yaml.UnmarshalStrict(document, object); err != nil {
		return err
	}
	return send(object)
}

func (a *account) own(name string) string { return name + "-" + a.namespace }

func (a *account) move(subjects []rbacv1.Subject) {
	for i := range subjects {
		subjects[i].Namespace = a.namespace
	}
}

// remove takes away what has no namespace. A leftover of a control plane that ends anyway harms nobody.
func (a *account) remove(ctx context.Context) {
	for _, name := range a.bindings {
		_ = a.client.RbacV1().ClusterRoleBindings().Delete(ctx, name, metav1.DeleteOptions{})
	}
	for _, name := range a.roles {
		_ = a.client.RbacV1().ClusterRoles().Delete(ctx, name, metav1.DeleteOptions{})
	}
}
