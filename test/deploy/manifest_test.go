package deploy_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/deploy"
)

// workload is a pod template with what the tests need to know about where it comes from.
type workload struct {
	file, kind string
	pod        corev1.PodTemplateSpec
	sidecar    corev1.Container
}

func workloads(t *testing.T) []workload {
	t.Helper()
	var all []workload
	for _, object := range deploy.Objects(t, "*.yaml") {
		w := workload{file: object.File, kind: object.GetKind()}
		switch object.GetKind() {
		case "Deployment":
			w.pod = deploy.Decode[appsv1.Deployment](t, object).Spec.Template
		case "StatefulSet":
			w.pod = deploy.Decode[appsv1.StatefulSet](t, object).Spec.Template
		case "DaemonSet":
			w.pod = deploy.Decode[appsv1.DaemonSet](t, object).Spec.Template
		default:
			continue
		}
		i := slices.IndexFunc(w.pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == "csi-provisioner" })
		if i < 0 {
			t.Fatalf("%s has no container csi-provisioner", object.File)
		}
		w.sidecar = w.pod.Spec.Containers[i]
		all = append(all, w)
	}
	if len(all) < 4 {
		t.Fatalf("%d workloads, want two Deployments, a StatefulSet and a DaemonSet", len(all))
	}
	return all
}

func TestContainersHaveNoMoreThanTheyNeed(t *testing.T) {
	t.Parallel()
	for _, w := range workloads(t) {
		c := w.sidecar
		want := &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
			Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		}
		if diff := cmp.Diff(want, c.SecurityContext); diff != "" {
			t.Errorf("%s: security context (-want +got):\n%s", w.file, diff)
		}
		requests := c.Resources.Requests.Cpu().String() + " " + c.Resources.Requests.Memory().String()
		if requests != "10m 20Mi" {
			t.Errorf("%s requests %s", w.file, requests)
		}
		if w.pod.Spec.HostNetwork || w.pod.Spec.HostPID || w.pod.Spec.ServiceAccountName != "csi-provisioner" {
			t.Errorf("%s: host network, host processes or another service account", w.file)
		}
		text := string(deploy.Read(t, "kubernetes", w.file))
		for _, option := range []string{"# runAsNonRoot: true", "# privileged: true", "SELinux"} {
			if !strings.Contains(text, option) {
				t.Errorf("%s does not show the option %q", w.file, option)
			}
		}
	}
}

func TestPodsHaveTimeToStopAndProbes(t *testing.T) {
	t.Parallel()
	for _, w := range workloads(t) {
		if grace := w.pod.Spec.TerminationGracePeriodSeconds; grace == nil || *grace < 30 {
			t.Errorf("%s: the grace period is below 30 s", w.file)
		}
		live, ready := w.sidecar.LivenessProbe, w.sidecar.ReadinessProbe
		if live == nil || ready == nil || live.HTTPGet == nil || ready.HTTPGet == nil {
			t.Errorf("%s: a probe is missing", w.file)
			continue
		}
		want := "/healthz"
		if slices.Contains(w.sidecar.Args, "--leader-election") {
			want = "/healthz/leader-election"
		}
		if live.HTTPGet.Path != want || ready.HTTPGet.Path != "/readyz" {
			t.Errorf("%s: probes ask %s and %s", w.file, live.HTTPGet.Path, ready.HTTPGet.Path)
		}
		if len(w.sidecar.Ports) != 1 || live.HTTPGet.Port.String() != w.sidecar.Ports[0].Name {
			t.Errorf("%s: the probes ask no port of the container", w.file)
		}
	}
}

// The variables that flags need, and flags that the program has.
func TestArgumentsAndEnvironmentFitTogether(t *testing.T) {
	t.Parallel()
	help := helpText(t)
	needs := map[string][]string{
		"--enable-capacity": {"NAMESPACE", "POD_NAME"},
		"--node-deployment": {"NODE_NAME"},
		"--leader-election": {"POD_NAME", "POD_NAMESPACE"},
	}
	for _, w := range workloads(t) {
		env := map[string]bool{}
		for _, v := range w.sidecar.Env {
			env[v.Name] = true
		}
		for _, arg := range w.sidecar.Args {
			name, _, _ := strings.Cut(arg, "=")
			if !strings.Contains(help, name) {
				t.Errorf("%s: the program has no flag %s", w.file, name)
			}
			for _, variable := range needs[name] {
				if !env[variable] {
					t.Errorf("%s: %s without the variable %s", w.file, name, variable)
				}
			}
		}
		if slices.Contains(w.sidecar.Args, "--node-deployment") == slices.Contains(w.sidecar.Args, "--leader-election") && w.kind != "StatefulSet" {
			t.Errorf("%s: either a lease or node deployment", w.file)
		}
	}
}

func helpText(t *testing.T) string {
	t.Helper()
	root, err := cluster.RepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "cmd", "csi-provisioner", "testdata", "help.golden"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestEachRoleIsBoundToTheServiceAccount(t *testing.T) {
	t.Parallel()
	bound := map[string]bool{}
	bind := func(ref rbacv1.RoleRef, subjects []rbacv1.Subject) {
		want := []rbacv1.Subject{{Kind: "ServiceAccount", Name: "csi-provisioner", Namespace: "default"}}
		if diff := cmp.Diff(want, subjects); diff != "" {
			t.Errorf("%s %s (-want +got):\n%s", ref.Kind, ref.Name, diff)
		}
		bound[ref.Kind+" "+ref.Name] = true
	}
	roles := map[string]bool{}
	for _, object := range deploy.Objects(t, "rbac-*.yaml") {
		switch object.GetKind() {
		case "ClusterRoleBinding":
			b := deploy.Decode[rbacv1.ClusterRoleBinding](t, object)
			bind(b.RoleRef, b.Subjects)
		case "RoleBinding":
			b := deploy.Decode[rbacv1.RoleBinding](t, object)
			bind(b.RoleRef, b.Subjects)
		case "ClusterRole", "Role":
			roles[object.GetKind()+" "+object.GetName()] = true
		}
	}
	if diff := cmp.Diff(roles, bound); diff != "" {
		t.Errorf("roles and bound roles (-roles +bound):\n%s", diff)
	}
	// Those of the sample of old: tools and documents know them by name.
	for _, name := range []string{"ClusterRole external-provisioner-runner", "Role external-provisioner-cfg"} {
		if !roles[name] {
			t.Errorf("there is no %s", name)
		}
	}
}

func TestTheKustomizationNamesEachManifest(t *testing.T) {
	t.Parallel()
	text := deploy.Read(t, "kubernetes", deploy.Kustomization)
	var file struct {
		APIVersion, Kind, Namespace string
		Resources                   []string
	}
	if err := yaml.UnmarshalStrict(text, &file); err != nil {
		t.Fatal(err)
	}
	var named []string
	for line := range strings.Lines(string(text)) {
		if name := strings.TrimLeft(strings.TrimSpace(line), "# -"); strings.HasSuffix(name, ".yaml") && !strings.Contains(name, " ") {
			named = append(named, name)
		}
	}
	entries, err := os.ReadDir(deploy.Folder(t, "kubernetes"))
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, entry := range entries {
		if entry.Name() != deploy.Kustomization {
			want = append(want, entry.Name())
		}
	}
	slices.Sort(named)
	if diff := cmp.Diff(want, named); diff != "" {
		t.Errorf("manifests and named ones (-want +got):\n%s", diff)
	}
	for _, must := range []string{"rbac-base.yaml", "rbac-leader-election.yaml", "deployment.yaml"} {
		if !slices.Contains(file.Resources, must) {
			t.Errorf("%s is not among the resources", must)
		}
	}
}
