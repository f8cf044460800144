package integration

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/controllers/capacity"
	"github.com/csi-sidecars/external-provisioner/pkg/driver"
	"github.com/csi-sidecars/external-provisioner/pkg/segments"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	controlplane "github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
)

// lateSite is a site whose class binds late.
func lateSite(t *testing.T) *site {
	t.Helper()
	return newSite(t, func(class *fixture.ClassBuilder) { class.WaitForFirstConsumer() })
}

// publisher is a running capacity controller with its driver.
type publisher struct {
	*memdriver.Driver
	*capacity.Controller
	stop func()
}

// publish starts a publisher for the site's driver, which has 10Gi everywhere. It polls five times a second and
// works under the rights that a service account of the site gets from the capacity feature.
func (s *site) publish(edit ...func(*capacity.Config)) *publisher {
	s.Helper()
	return s.publishOf(s.ns, memdriver.Config{CapacityBytes: 10 << 30, Topology: s.zone("a")}, edit...)
}

// publishOf is publish for a driver of this name.
func (s *site) publishOf(name string, mem memdriver.Config, edit ...func(*capacity.Config)) *publisher {
	s.Helper()
	mem.Name = name
	p := &publisher{Driver: memdriver.Serve(s.T, mem)}
	d, err := driver.Connect(s.Context(), driver.Config{Address: p.Socket(), Timeout: callTimeout})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(d.Close)
	index, err := segments.New(segments.Config{Driver: name, Client: s.clients.Core, Metadata: s.clients.Metadata})
	if err != nil {
		s.Fatal(err)
	}
	classes, err := cluster.NewInformers(cluster.InformersConfig{Client: s.clients.Core, Driver: name})
	if err != nil {
		s.Fatal(err)
	}
	cfg := capacity.Config{
		Driver: d, Segments: index, Classes: classes, Objects: s.objectsOf(name, wellknown.ManagedByBase), Gate: d.Gate,
		PollInterval: 200 * time.Millisecond, Threads: 4, RetryStart: 20 * time.Millisecond, RetryMax: 200 * time.Millisecond,
	}
	for _, change := range edit {
		change(&cfg)
	}
	if p.Controller, err = capacity.New(cfg); err != nil {
		s.Fatal(err)
	}
	stop, cancel := context.WithCancel(s.Context())
	var running sync.WaitGroup
	for _, run := range []func(context.Context){index.Run, classes.Run, cfg.Objects.Run} {
		running.Go(func() { run(stop) })
	}
	running.Go(func() {
		if err := d.Supervise(stop); err != nil && stop.Err() == nil {
			s.Error(err)
		}
	})
	running.Go(func() {
		if err := p.Run(stop, context.WithoutCancel(stop)); err != nil {
			s.Error(err)
		}
	})
	p.stop = func() { cancel(); running.Wait() }
	s.Cleanup(p.stop)
	return p
}

// impatient is a driver that is asked for a second and not longer.
type impatient struct{ capacity.Driver }

func (d impatient) GetCapacity(ctx context.Context, request *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return d.Driver.GetCapacity(ctx, request)
}

// objectsOf connects to the objects of a driver in the site's namespace, as a service account that may do there
// just what the contract grants.
func (s *site) objectsOf(driverName, managedBy string) *capacity.Objects {
	s.Helper()
	rbac := s.clients.Core.RbacV1()
	role, err := rbac.Roles(s.ns).Create(s.Context(), &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "capacity-"},
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{storagev1.GroupName}, Resources: []string{"csistoragecapacities"},
			Verbs: []string{"list", "watch", "create", "update", "delete"},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	if _, err := rbac.RoleBindings(s.ns).Create(s.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "capacity-"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: s.ns, Name: "csi"}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
	}, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	config := controlplane.Shared(s.T).Config()
	config.Wrap(s.traffic.over)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + s.ns + ":csi", Groups: []string{"system:serviceaccounts", "system:authenticated"},
	}
	clients, err := cluster.NewClients(config, cluster.ClientConfig{Version: "test", Capacity: cluster.Limits{QPS: -1}})
	if err != nil {
		s.Fatal(err)
	}
	objects, err := capacity.NewObjects(capacity.ObjectsConfig{
		Client: clients.Capacity, DriverName: driverName, ManagedBy: managedBy, Namespace: s.ns,
	})
	if err != nil {
		s.Fatal(err)
	}
	return objects
}

func (s *site) zone(name string) map[string]string { return map[string]string{s.ns + "/zone": name} }

// published returns the objects in the site's namespace, sorted by what they say.
func (s *site) published() []storagev1.CSIStorageCapacity {
	s.Helper()
	list, err := s.clients.Core.StorageV1().CSIStorageCapacities(s.ns).List(s.Context(), metav1.ListOptions{})
	if err != nil {
		s.Fatal(err)
	}
	slices.SortFunc(list.Items, func(a, b storagev1.CSIStorageCapacity) int {
		return strings.Compare(s.says(a)+a.Name, s.says(b)+b.Name)
	})
	return list.Items
}

// says puts an object in a line, without what all of the site have in common: "zone=a 10Gi".
func (s *site) says(object storagev1.CSIStorageCapacity) string {
	selector := []string{}
	if object.NodeTopology == nil {
		selector = append(selector, "nowhere")
	} else {
		for _, key := range slices.Sorted(maps.Keys(object.NodeTopology.MatchLabels)) {
			selector = append(selector, strings.TrimPrefix(key, s.ns+"/")+"="+object.NodeTopology.MatchLabels[key])
		}
	}
	line := strings.TrimSpace(strings.TrimPrefix(object.StorageClassName, s.ns) + " " + strings.Join(selector, ",") + " " + object.Capacity.String())
	if object.MaximumVolumeSize != nil {
		line += " at most " + object.MaximumVolumeSize.String()
	}
	return line
}

// becomes waits until the namespace holds just these objects, and then for three polls that it stays so.
func (s *site) becomes(p *publisher, want ...string) []storagev1.CSIStorageCapacity {
	s.Helper()
	var objects []storagev1.CSIStorageCapacity
	read := func() []string {
		objects = s.published()
		lines := []string{}
		for _, object := range objects {
			lines = append(lines, s.says(object))
		}
		return lines
	}
	var got []string
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if got = read(); slices.Equal(got, want) {
			break
		}
		if time.Now().After(deadline) {
			s.Fatalf("objects (-want +got):\n%s", cmp.Diff(want, got))
		}
	}
	before := objects
	p.polls(s, 3)
	if got = read(); !slices.Equal(got, want) {
		s.Errorf("objects after three polls (-want +got):\n%s", cmp.Diff(want, got))
	}
	if diff := cmp.Diff(versions(before), versions(objects)); diff != "" {
		s.Errorf("objects did not stay as they were (-before +after):\n%s", diff)
	}
	return objects
}

// polls waits until the driver was asked n times for each pair that is published.
func (p *publisher) polls(s *site, n int) {
	s.Helper()
	calls := len(p.Calls("GetCapacity")) + n*len(s.published())
	if _, err := p.WaitEnded(s.Context(), "GetCapacity", calls); err != nil {
		s.Fatal(err)
	}
}

func versions(objects []storagev1.CSIStorageCapacity) []string {
	all := []string{}
	for _, object := range objects {
		all = append(all, object.Name+" "+string(object.UID)+" "+object.ResourceVersion)
	}
	return all
}

// writes returns how many requests of this verb for capacity objects succeeded.
func (s *site) writes(verb string) int {
	return s.traffic.count(func(r request) bool {
		return r.verb == verb && r.code < 300 && strings.Contains(r.path, "/csistoragecapacities") && strings.Contains(r.path, "/"+s.ns+"/")
	})
}

// answers makes the driver answer for a zone, until the returned function is called.
func (p *publisher) answers(s *site, zone string, change func(*csi.GetCapacityResponse)) (remove func()) {
	return p.Add(memdriver.Rule{Method: "GetCapacity", When: s.about(zone), Edit: func(answer proto.Message) proto.Message {
		if response, ok := answer.(*csi.GetCapacityResponse); ok {
			change(response)
		}
		return answer
	}})
}

func (s *site) about(zone string) func(memdriver.Call) bool {
	return func(call memdriver.Call) bool {
		request, ok := call.Request.(*csi.GetCapacityRequest)
		return ok && request.GetAccessibleTopology().GetSegments()[s.ns+"/zone"] == zone
	}
}
