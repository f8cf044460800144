package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

const driverName = "d.example.com"

// world is a cluster and a driver. Each list comes in pages of two.
type world struct {
	pvs     []corev1.PersistentVolume
	claims  []corev1.PersistentVolumeClaim
	volumes []string

	fails    string              // this resource cannot be listed
	listed   func(w *world)      // called after the driver has sent its last page; nil for nothing
	volumeOf func(string) string // what a token that was sent becomes; nil for itself
	aborts   int                 // how many tokens are refused
	pages    int
}

const perPage = 2

// page returns the part of the list that begins at the token, and the token of the next one.
func page[T any](all []T, token string) ([]T, string) {
	at, _ := strconv.Atoi(token)
	if at+perPage < len(all) {
		return all[at : at+perPage], strconv.Itoa(at + perPage)
	}
	return all[min(at, len(all)):], ""
}

func (w *world) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	resource := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	var list any
	meta := metav1.ListMeta{ResourceVersion: "1"}
	switch {
	case r.Method != http.MethodGet || resource == w.fails:
		out.Header().Set("Content-Type", "application/json")
		out.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(out).Encode(metav1.Status{Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: "forbidden"})
		return
	case resource == "persistentvolumes":
		l := &corev1.PersistentVolumeList{ListMeta: meta}
		l.Items, l.Continue = page(w.pvs, r.URL.Query().Get("continue"))
		list = l
	default:
		l := &corev1.PersistentVolumeClaimList{ListMeta: meta}
		l.Items, l.Continue = page(w.claims, r.URL.Query().Get("continue"))
		list = l
	}
	w.pages++
	out.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(out).Encode(list)
}

func (w *world) ListVolumes(_ context.Context, r *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	if r.GetMaxEntries() != pageSize {
		return nil, status.Errorf(codes.InvalidArgument, "max_entries %d", r.GetMaxEntries())
	}
	if w.fails == "volumes" {
		return nil, status.Error(codes.Internal, "broken")
	}
	if r.GetStartingToken() != "" && w.aborts > 0 {
		w.aborts--
		return nil, status.Error(codes.Aborted, "unknown token")
	}
	ids, next := page(w.volumes, r.GetStartingToken())
	answer := &csi.ListVolumesResponse{NextToken: next}
	for _, id := range ids {
		answer.Entries = append(answer.Entries, &csi.ListVolumesResponse_Entry{Volume: &csi.Volume{VolumeId: id, CapacityBytes: 1 << 30}})
	}
	if w.volumeOf != nil {
		answer.NextToken = w.volumeOf(next)
	}
	if next == "" && w.listed != nil {
		w.listed(w)
	}
	return answer, nil
}

func (w *world) audit(t *testing.T, change func(*Config)) (*Report, error) {
	t.Helper()
	server := httptest.NewServer(w)
	t.Cleanup(server.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Driver: driverName, Volumes: w, Client: client, VolumeNamePrefix: "pvc", VolumeNameUUIDLength: -1}
	if change != nil {
		change(&cfg)
	}
	return Run(t.Context(), cfg)
}

func pv(name, driver, handle string, phase corev1.PersistentVolumePhase) corev1.PersistentVolume {
	return *fixture.PV(name).Driver(driver).Handle(handle).Phase(phase).Obj()
}

func claim(name string, uid types.UID, provisioner, volumeName string) corev1.PersistentVolumeClaim {
	return *fixture.Claim(name).Namespace("ns").UID(string(uid)).For(provisioner).Volume(volumeName).Obj()
}

const uid = "01234567-89ab-cdef-0123-456789abcdef"

func TestRun(t *testing.T) {
	t.Parallel()
	deleting := pv("deleting", driverName, "deleted", corev1.VolumeReleased)
	deleting.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	deleting.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "c"}
	inTree := corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "migrated"}, Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound}}
	inTree.Spec.GCEPersistentDisk = &corev1.GCEPersistentDiskVolumeSource{PDName: "disk"}
	for name, tc := range map[string]struct {
		world  world
		change func(*Config)
		want   Report
	}{
		"nothing at all": {want: Report{}},
		"all accounts for all, in several pages": {
			world: world{
				volumes: []string{"a", "b", "c", "d", "e"},
				pvs: []corev1.PersistentVolume{
					pv("1", driverName, "a", corev1.VolumeBound), pv("2", driverName, "b", corev1.VolumeAvailable), pv("3", driverName, "c", corev1.VolumeReleased),
					pv("4", driverName, "d", corev1.VolumeFailed), pv("5", driverName, "e", corev1.VolumePending), pv("6", "other", "f", corev1.VolumeBound),
				},
			},
			want: Report{Volumes: 5, PersistentVolumes: 5},
		},
		"what nothing accounts for": {
			world: world{volumes: []string{"z", "a", "b"}, pvs: []corev1.PersistentVolume{pv("1", driverName, "a", corev1.VolumeBound)}},
			want:  Report{Volumes: 3, PersistentVolumes: 1, Unaccounted: []Volume{{ID: "b", CapacityBytes: 1 << 30}, {ID: "z", CapacityBytes: 1 << 30}}},
		},
		"another driver's PersistentVolume accounts for a volume, and need not be listed": {
			world: world{volumes: []string{"a"}, pvs: []corev1.PersistentVolume{pv("1", "other", "a", corev1.VolumeBound), pv("2", "other", "b", corev1.VolumeBound)}},
			want:  Report{Volumes: 1},
		},
		"what the driver does not list": {
			world: world{volumes: []string{"a"}, pvs: []corev1.PersistentVolume{
				pv("2", driverName, "b", corev1.VolumeBound), pv("1", driverName, "a", corev1.VolumeBound), deleting,
			}},
			want: Report{Volumes: 1, PersistentVolumes: 3, Missing: []PersistentVolume{
				{Name: "2", VolumeID: "b", Phase: corev1.VolumeBound}, {Name: "deleting", VolumeID: "deleted", Phase: corev1.VolumeReleased, Claim: "ns/c", Deleting: true},
			}},
		},
		"PersistentVolumes of the in-tree plugin": {
			world: world{volumes: []string{"disk-as-csi"}, pvs: []corev1.PersistentVolume{inTree}},
			change: func(c *Config) {
				c.ToCSI = func(in *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
					out := pv(in.Name, driverName, in.Spec.GCEPersistentDisk.PDName+"-as-csi", corev1.VolumeBound)
					return &out, nil
				}
			},
			want: Report{Volumes: 1, PersistentVolumes: 1},
		},
		"PersistentVolumes of a plugin that is not replaced": {
			world: world{pvs: []corev1.PersistentVolume{inTree}},
			change: func(c *Config) {
				c.ToCSI = func(*corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
					return nil, errors.New("another plugin")
				}
			},
			want: Report{},
		},
		"a node lists its own volumes": {
			world: world{volumes: []string{"here"}, pvs: []corev1.PersistentVolume{
				pv("1", driverName, "here", corev1.VolumeBound), pv("2", driverName, "there", corev1.VolumeBound), pv("3", driverName, "here too", corev1.VolumeBound),
			}},
			change: func(c *Config) {
				c.Reachable = func(v *corev1.PersistentVolume) (bool, error) { return v.Name != "2", nil }
			},
			want: Report{Volumes: 1, PersistentVolumes: 2, Missing: []PersistentVolume{{Name: "3", VolumeID: "here too", Phase: corev1.VolumeBound}}},
		},
		"claims without a volume": {
			world: world{
				volumes: []string{"xpvc-" + uid + "y", "opaque"},
				claims: []corev1.PersistentVolumeClaim{
					claim("bound", "1", driverName, "v"), claim("unbound", uid, driverName, ""), claim("other", "2", "other", ""), claim("second", "3", driverName, ""),
				},
			},
			want: Report{Volumes: 2, UnboundClaims: 2, Unaccounted: []Volume{
				{ID: "opaque", CapacityBytes: 1 << 30}, {ID: "xpvc-" + uid + "y", CapacityBytes: 1 << 30, Claim: "ns/unbound"},
			}},
		},
		"what comes and goes meanwhile": {
			world: world{
				volumes: []string{"old", "new"},
				pvs:     []corev1.PersistentVolume{pv("old", driverName, "old", corev1.VolumeBound), pv("gone", driverName, "gone", corev1.VolumeBound)},
				listed: func(w *world) {
					w.pvs = []corev1.PersistentVolume{
						pv("old", driverName, "old", corev1.VolumeBound), pv("new", driverName, "new", corev1.VolumeBound), pv("later", driverName, "later", corev1.VolumeBound),
					}
				},
			},
			want: Report{Volumes: 2, PersistentVolumes: 2},
		},
		"a token that the driver has forgotten": {
			world: world{volumes: []string{"a", "b", "c"}, aborts: maxRestarts - 1},
			want: Report{Volumes: 3, Unaccounted: []Volume{
				{ID: "a", CapacityBytes: 1 << 30}, {ID: "b", CapacityBytes: 1 << 30}, {ID: "c", CapacityBytes: 1 << 30},
			}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := tc.world.audit(t, tc.change)
			if err != nil {
				t.Fatal(err)
			}
			want := tc.want
			want.Driver = driverName
			if want.Unaccounted == nil {
				want.Unaccounted = []Volume{}
			}
			if want.Missing == nil {
				want.Missing = []PersistentVolume{}
			}
			if diff := cmp.Diff(&want, got); diff != "" {
				t.Errorf("report (-want +got):\n%s", diff)
			}
		})
	}
}

// A side that cannot be read is an error: taken for empty, it would make a leak of every volume.
func TestRunReportsWhatItCannotRead(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		world  world
		change func(*Config)
		want   string
	}{
		"PersistentVolumes": {world: world{fails: "persistentvolumes"}, want: "list PersistentVolumes: "},
		"claims":            {world: world{fails: "persistentvolumeclaims"}, want: "list PersistentVolumeClaims: "},
		"volumes":           {world: world{fails: "volumes"}, want: "list the driver's volumes: "},
		"PersistentVolumes, the second time": {
			world: world{listed: func(w *world) { w.fails = "persistentvolumes" }}, want: "list PersistentVolumes: ",
		},
		"a driver that forgets each token":          {world: world{volumes: []string{"a", "b", "c"}, aborts: maxRestarts}, want: "refuses the token"},
		"a driver that sends one page for ever":     {world: world{volumeOf: func(string) string { return "0" }}, want: `the token "0" twice`},
		"a topology that cannot be read":            {world: world{pvs: []corev1.PersistentVolume{pv("1", driverName, "a", "")}}, change: unreadable, want: "PersistentVolume 1: "},
		"a name that no volume of a claim can have": {world: world{claims: []corev1.PersistentVolumeClaim{claim("c", "", driverName, "")}}, want: "claim ns/c: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report, err := tc.world.audit(t, tc.change)
			if err == nil || report != nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, %v, want an error with %q", report, err, tc.want)
			}
		})
	}
}

func unreadable(c *Config) {
	c.Reachable = func(*corev1.PersistentVolume) (bool, error) { return false, errors.New("unreadable") }
}

func TestClaimIn(t *testing.T) {
	t.Parallel()
	claims := map[string]string{"pvc-0123": "ns/a", "pvc-4567": "ns/b"}
	for id, want := range map[string]string{
		"pvc-0123": "ns/a", "vol/pvc-pvc-4567#1": "ns/b", "pvc-012": "", "pvc-9999pvc-0123": "ns/a", "": "", "opaque": "", "pvc-": "",
	} {
		if got := claimIn(id, "pvc", claims); got != want {
			t.Errorf("%q: claim %q, want %q", id, got, want)
		}
	}
	if got := claimIn("pvc-0123", "pvc", nil); got != "" {
		t.Errorf("without claims: %q", got)
	}
}

// BenchmarkRun shows what an audit holds at a time: 100,000 volumes, each with its PersistentVolume.
func BenchmarkRun(b *testing.B) {
	const volumes = 100_000
	handles := map[string]handle{}
	for i := range volumes {
		handles[fmt.Sprintf("vol-%032d", i)] = handle{own: true}
	}
	lister := manyVolumes(volumes)
	b.ReportAllocs()
	for b.Loop() {
		a := &auditor{cfg: Config{Volumes: lister}, handles: handles, report: &Report{}}
		if candidates, err := a.readVolumes(b.Context()); err != nil || len(candidates) != 0 || a.report.Volumes != volumes {
			b.Fatal(err, len(candidates), a.report.Volumes)
		}
	}
}

// manyVolumes lists as many volumes, in the pages that are asked for.
type manyVolumes int

func (n manyVolumes) ListVolumes(_ context.Context, r *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	at, _ := strconv.Atoi(r.GetStartingToken())
	answer := &csi.ListVolumesResponse{}
	for i := at; i < min(at+int(r.GetMaxEntries()), int(n)); i++ {
		answer.Entries = append(answer.Entries, &csi.ListVolumesResponse_Entry{Volume: &csi.Volume{VolumeId: fmt.Sprintf("vol-%032d", i)}})
	}
	if next := at + int(r.GetMaxEntries()); next < int(n) {
		answer.NextToken = strconv.Itoa(next)
	}
	return answer, nil
}
