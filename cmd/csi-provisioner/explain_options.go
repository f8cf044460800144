package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/csi-sidecars/external-provisioner/pkg/driver"
)

// explainOptions are the flags of the command explain: all of the sidecar's, so that its arguments can be pasted, and
// a few of its own.
type explainOptions struct {
	queryOptions
	claim        string // the one word that Validate accepts
	namespace    string
	pv           string
	driver       string
	capabilities []string
}

func newExplainOptions() *explainOptions {
	o := &explainOptions{queryOptions: newQueryOptions(explainCommand)}
	fs := o.own
	fs.StringVarP(&o.namespace, "namespace", "n", "", "The claim's `namespace`. Empty means that of the kubeconfig's context.")
	fs.StringVar(&o.pv, "pv", "", "Explain why the volume of this PersistentVolume is deleted or not, in place of a claim.")
	fs.StringVar(&o.driver, "driver", "", "The driver's `name`, where its socket cannot be reached; --csi-address is not used then.")
	fs.StringSliceVar(&o.capabilities, "capabilities", nil, "With --driver, the driver's capabilities as the CSI specification calls them, separated by commas, like CREATE_DELETE_VOLUME,CLONE_VOLUME,VOLUME_ACCESSIBILITY_CONSTRAINTS. Any of the controller's brings CONTROLLER_SERVICE along.")
	o.addShared()
	fs.DurationVar(&o.wait, "wait", 30*time.Second, "How long to wait for the API server, and for up to 5s of that for the driver.")
	return o
}

// Validate returns every complaint about flags and environment in one joined error, or nil.
func (o *explainOptions) Validate(env environment) error {
	var c complaints
	switch {
	case o.pv != "" && len(o.words) > 0:
		c.addf("explain either claim %s or --pv %s, not both", o.words[0], o.pv)
	case o.pv == "" && len(o.words) == 0:
		c.addf("name a claim to explain, or a PersistentVolume as pv/NAME")
	case len(o.words) > 1:
		c.addf("explain one claim at a time, not %q", o.words)
	case len(o.words) == 1:
		if err := o.named(o.words[0]); err != nil {
			c = append(c, err)
		}
		o.words = nil
	}
	if o.namespace != "" {
		if problems := validation.IsDNS1123Label(o.namespace); len(problems) > 0 {
			c.addf("--namespace: %q is not a namespace: %s", o.namespace, strings.Join(problems, "; "))
		}
	}
	if named := o.own.Changed("capabilities"); named != (o.driver != "") {
		c.addf("--driver and --capabilities go together: give both, or neither to ask the driver at --csi-address")
	}
	if _, err := identityOf(o.driver, o.capabilities); err != nil {
		c.addf("--capabilities: %w", err)
	}
	return errors.Join(errors.Join(c...), o.queryOptions.Validate(env))
}

// The kinds that a name may be written with, as in kubectl.
var (
	claimKinds = []string{"pvc", "persistentvolumeclaim", "persistentvolumeclaims"}
	pvKinds    = []string{"pv", "persistentvolume", "persistentvolumes"}
)

// named takes what a word names: NAME, pvc/NAME, NAMESPACE/NAME or pv/NAME. A namespace that is called like a kind must
// be given with --namespace.
func (o *explainOptions) named(word string) error {
	before, name, found := strings.Cut(word, "/")
	switch {
	case !found:
		o.claim = word
	case before == "" || name == "" || strings.Contains(name, "/"):
		return fmt.Errorf("%q names nothing: write NAME, pvc/NAME, NAMESPACE/NAME or pv/NAME", word)
	case slices.Contains(claimKinds, before):
		o.claim = name
	case slices.Contains(pvKinds, before):
		o.pv = name
	case o.namespace != "" && o.namespace != before:
		return fmt.Errorf("%q and --namespace=%s name two namespaces, delete one of them", word, o.namespace)
	default:
		o.namespace, o.claim = before, name
	}
	return nil
}

// identityOf returns the driver of that name with these capabilities, of the plugin or of its controller. One that
// the specification does not have is an error that lists those which it has.
func identityOf(name string, capabilities []string) (driver.Identity, error) {
	id := driver.Identity{Name: name, Plugin: driver.PluginSet{}, Controller: driver.ControllerSet{}}
	var unknown []string
	for _, capability := range capabilities {
		capability = strings.TrimSpace(capability)
		if value, ok := csi.ControllerServiceCapability_RPC_Type_value[capability]; ok && value != 0 {
			id.Controller[csi.ControllerServiceCapability_RPC_Type(value)] = struct{}{}
			id.Plugin[csi.PluginCapability_Service_CONTROLLER_SERVICE] = struct{}{}
		} else if value, ok := csi.PluginCapability_Service_Type_value[capability]; ok && value != 0 {
			id.Plugin[csi.PluginCapability_Service_Type(value)] = struct{}{}
		} else if capability != "" {
			unknown = append(unknown, capability)
		}
	}
	if len(unknown) > 0 {
		return id, fmt.Errorf("unknown %s; known are %s", strings.Join(unknown, ", "), strings.Join(knownCapabilities(), ", "))
	}
	return id, nil
}

// knownCapabilities returns all names that identityOf takes, sorted.
func knownCapabilities() []string {
	names := append(slices.Collect(maps.Keys(csi.ControllerServiceCapability_RPC_Type_value)), slices.Collect(maps.Keys(csi.PluginCapability_Service_Type_value))...)
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(name string) bool { return name == "UNKNOWN" })
}

// explainConfig is what one run of explain is to do.
type explainConfig struct {
	Config
	// Namespace and Claim name the claim, unless PV is set. An empty Namespace means the kubeconfig's.
	Namespace, Claim string
	// PV is the PersistentVolume to explain; empty for a claim.
	PV string
	// Driver is who the driver is; an empty name means that it is asked.
	Driver driver.Identity
	// Wait bounds everything.
	Wait time.Duration
}

// Complete returns what to do. Call it only after Validate has found nothing.
func (o *explainOptions) Complete(env environment, version string) (explainConfig, error) {
	cfg, err := o.queryOptions.Complete(env, version)
	if err != nil {
		return explainConfig{}, err
	}
	identity, err := identityOf(o.driver, o.capabilities)
	if err != nil {
		return explainConfig{}, err
	}
	return explainConfig{Config: cfg, Namespace: o.namespace, Claim: o.claim, PV: o.pv, Driver: identity, Wait: o.wait}, nil
}

// writeHelp prints what the command is for and its own flags.
func (o *explainOptions) writeHelp(w io.Writer) error {
	var b strings.Builder
	b.WriteString(`csi-provisioner explain tells what the sidecar would do now about one claim, or about the deletion of one
PersistentVolume, and why: each check in order, and the request that the driver would get. It uses the code
that does it, writes nothing to the cluster, reads no secret, and asks the driver only who it is, with
--node-deployment for its node and, where nodes compete for a claim, for its room.

Usage: csi-provisioner explain [flags] NAME | pvc/NAME | NAMESPACE/NAME    a PersistentVolumeClaim
       csi-provisioner explain [flags] pv/NAME                             a PersistentVolume

As kubectl-csi_provisioner in the PATH it is a plugin: kubectl csi_provisioner explain NAME.

All flags of csi-provisioner are known too: paste the sidecar's arguments, because they shape the request.
As in kubectl, --kubeconfig wins over KUBECONFIG. Without these and --master it uses the service account
inside of a cluster, and ~/.kube/config outside. Exit code: 0 with an answer, whatever it is, 1 without
one, 2 for a wrong command line.

What only a running sidecar remembers is not seen, such as how long it waits after a failure.

Explain:
`)
	o.own.VisitAll(func(f *pflag.Flag) { b.WriteString(flagHelp(f)) })
	b.WriteString("\nThe other flags: csi-provisioner --help\n")
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("print the help: %w", err)
	}
	return nil
}
