package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"slices"
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
	"github.com/csi-sidecars/external-provisioner/test/sidecar"
)

// explained is the JSON output of explain, as far as the tests look at it.
type explained struct {
	text   string
	Answer string
	Cause  string
	Driver struct{ Capabilities []string }
	Call   *struct {
		Request json.RawMessage
		Secret  *struct{ Namespace, Name string }
	}
	PersistentVolume *struct{ Name string }
}

// explain runs explain with the rights that are shipped for it, and with the arguments of the sidecar.
func (s *stage) explain(o sidecar.Options, args ...string) explained {
	s.t.Helper()
	if s.reader == "" {
		s.reader = limitedAccount(s.t, s.World, shippedRights(s.t, explainRights))
	}
	o.Kubeconfig = s.reader
	code, stdout, stderr := runExplain(s.t, o, append(args, "--output=json")...)
	if code != 0 {
		s.t.Fatalf("exit code %d: %s", code, stderr)
	}
	e := explained{text: stdout}
	if err := json.Unmarshal([]byte(stdout), &e); err != nil {
		s.t.Fatalf("%v: %s", err, stdout)
	}
	return e
}

// runExplain runs explain; the namespace is the kubeconfig's.
func runExplain(t *testing.T, o sidecar.Options, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return runCommand(t, o, "explain", args...)
}

// runCommand runs a command with the arguments of the sidecar. The kubeconfig that KUBECONFIG names is not to be read.
func runCommand(t *testing.T, o sidecar.Options, command string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	all := slices.Concat([]string{command, "--kubeconfig=" + o.Kubeconfig}, o.Args, args)
	process := exec.CommandContext(t.Context(), sidecar.Binary(t), all...)
	process.Env = append(process.Environ(), append([]string{"KUBECONFIG=/does/not/exist"}, o.Env...)...)
	var out, errs bytes.Buffer
	process.Stdout, process.Stderr = &out, &errs
	err := process.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), out.String(), errs.String()
	}
	if err != nil {
		t.Fatal(err)
	}
	return 0, out.String(), errs.String()
}

// ask makes the claim and waits until kube-controller-manager has named its provisioner.
func (s *stage) ask(claim *fixture.ClaimBuilder) {
	s.t.Helper()
	s.Claim(s.t, claim)
	s.annotated(asked, wellknown.AnnStorageProvisioner, true)
}

// foreignClass makes a class that names something else than the driver.
func (s *stage) foreignClass(provisioner string) string {
	s.t.Helper()
	name := "foreign-" + s.Namespace
	must[*storagev1.StorageClass](s.t)(s.Client.StorageV1().StorageClasses().Create(s.t.Context(), fixture.Class(name).Provisioner(provisioner).Obj(), metav1.CreateOptions{}))
	s.cleanUp(func(ctx context.Context) error {
		return s.Client.StorageV1().StorageClasses().Delete(ctx, name, metav1.DeleteOptions{})
	})
	return name
}

// zones makes a node for each zone, with the driver on it.
func (s *stage) zones(zones ...string) {
	s.t.Helper()
	for _, zone := range zones {
		s.node(s.Namespace+"-"+zone, map[string]string{zoneKey: zone})
	}
}

// witness makes a claim that any instance serves at once, and waits until its volume is asked for.
func (s *stage) witness() {
	s.t.Helper()
	claim := fixture.Claim("witness").Class(s.Class(s.t, fixture.Class("witness").WaitForFirstConsumer()))
	if nodes := must[[]string](s.t)(s.nodeNames()); len(nodes) > 0 {
		claim.SelectedNode(nodes[0])
	} else {
		claim = fixture.Claim("witness").Class(s.Class(s.t, fixture.Class("at-once")))
	}
	made := s.Claim(s.t, claim)
	s.firstCreate("pvc-" + string(made.UID))
}

// nodeNames returns the nodes of this world, sorted.
func (s *stage) nodeNames() ([]string, error) {
	list, err := s.Client.StorageV1().CSINodes().List(s.t.Context(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, node := range list.Items {
		if slices.ContainsFunc(node.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == s.Driver.Name() }) {
			names = append(names, node.Name)
		}
	}
	return names, nil
}

// firstCreate waits until the driver is asked for the volume of that name, and returns that call.
func (s *stage) firstCreate(name string) memdriver.Call {
	s.t.Helper()
	var call memdriver.Call
	sidecar.Eventually(s.t, "the driver is asked for "+name, func(context.Context) (bool, error) {
		calls := s.Driver.Calls("CreateVolume")
		i := slices.IndexFunc(calls, func(c memdriver.Call) bool { return c.Key == name })
		if i >= 0 {
			call = calls[i]
		}
		return i >= 0, nil
	})
	return call
}
