package node

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/csi-sidecars/external-provisioner/test/memdriver"
)

const (
	zone = "topology.mem.csi/zone"
	mib  = 1 << 20
)

// serve starts a driver whose volumes hold something, below a new folder. When the test ends, nothing may be mounted there
// and no loop device may be attached.
func serve(t *testing.T, cfg memdriver.Config) (*memdriver.Driver, string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("mounts and loop devices need root")
	}
	// Outside of t.TempDir, whose names are too long for a socket.
	dir, err := os.MkdirTemp("", "node") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if left := leftovers(t, dir); left != "" {
			t.Errorf("left behind:\n%s", left)
			return
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	cfg.Dir, cfg.Socket = filepath.Join(dir, "data"), filepath.Join(dir, "csi.sock")
	return memdriver.Serve(t, cfg), dir
}

// leftovers lists the mounts and loop devices of what lies below dir.
func leftovers(t *testing.T, dir string) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var left strings.Builder
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, dir) {
			left.WriteString(line)
		}
	}
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		backing, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ENXIO) && !errors.Is(err, syscall.ENODEV) {
			t.Fatal(err)
		}
		if strings.HasPrefix(string(backing), dir) {
			left.WriteString(file + " " + string(backing))
		}
	}
	return left.String()
}

// host plays kubelet with one driver.
type host struct {
	t          *testing.T
	dir        string
	driver     *memdriver.Driver
	controller csi.ControllerClient
	node       csi.NodeClient
}

func newHost(t *testing.T, cfg memdriver.Config) *host {
	t.Helper()
	d, dir := serve(t, cfg)
	conn := dial(t, d.Socket())
	return &host{t: t, dir: dir, driver: d, controller: csi.NewControllerClient(conn), node: csi.NewNodeClient(conn)}
}

func dial(t *testing.T, socket string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func fileSystem(mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
	}
}

func device() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
}

func writer() *csi.VolumeCapability {
	return fileSystem(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)
}

func (h *host) create(name string, bytes int64, capability *csi.VolumeCapability, source *csi.VolumeContentSource) string {
	h.t.Helper()
	answer, err := h.controller.CreateVolume(h.t.Context(), &csi.CreateVolumeRequest{
		Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: bytes},
		VolumeCapabilities: []*csi.VolumeCapability{capability}, VolumeContentSource: source,
	})
	if err != nil {
		h.t.Fatalf("create %s: %v", name, err)
	}
	return answer.GetVolume().GetVolumeId()
}

func (h *host) staging(id string) string { return filepath.Join(h.dir, "staging", id) }

func (h *host) target(id, pod string) string { return filepath.Join(h.dir, "pods", pod, id) }

// mount stages and publishes a volume for a pod, and undoes it when the test ends.
func (h *host) mount(id, pod string, capability *csi.VolumeCapability) string {
	h.t.Helper()
	if _, err := h.node.NodeStageVolume(h.t.Context(), &csi.NodeStageVolumeRequest{
		VolumeId: id, StagingTargetPath: h.staging(id), VolumeCapability: capability,
	}); err != nil {
		h.t.Fatalf("stage %s: %v", id, err)
	}
	if err := h.publish(id, pod, capability, nil); err != nil {
		h.t.Fatalf("publish %s: %v", id, err)
	}
	return h.target(id, pod)
}

func (h *host) publish(id, pod string, capability *csi.VolumeCapability, more map[string]string) error {
	_, err := h.node.NodePublishVolume(h.t.Context(), &csi.NodePublishVolumeRequest{
		VolumeId: id, StagingTargetPath: h.staging(id), TargetPath: h.target(id, pod), VolumeCapability: capability, VolumeContext: more,
	})
	return err
}

func (h *host) unmount(id, pod string) {
	h.t.Helper()
	h.unpublish(id, pod)
	if _, err := h.node.NodeUnstageVolume(h.t.Context(), &csi.NodeUnstageVolumeRequest{
		VolumeId: id, StagingTargetPath: h.staging(id),
	}); err != nil {
		h.t.Fatalf("unstage %s: %v", id, err)
	}
}

func (h *host) unpublish(id, pod string) {
	h.t.Helper()
	if _, err := h.node.NodeUnpublishVolume(h.t.Context(), &csi.NodeUnpublishVolumeRequest{
		VolumeId: id, TargetPath: h.target(id, pod),
	}); err != nil {
		h.t.Fatalf("unpublish %s: %v", id, err)
	}
}

func (h *host) delete(ids ...string) {
	h.t.Helper()
	for _, id := range ids {
		if _, err := h.controller.DeleteVolume(h.t.Context(), &csi.DeleteVolumeRequest{VolumeId: id}); err != nil {
			h.t.Fatalf("delete %s: %v", id, err)
		}
	}
}

func (h *host) snapshot(name, id string) *csi.VolumeContentSource {
	h.t.Helper()
	answer, err := h.controller.CreateSnapshot(h.t.Context(), &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: id})
	if err != nil {
		h.t.Fatalf("snapshot of %s: %v", id, err)
	}
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: answer.GetSnapshot().GetSnapshotId()},
	}}
}

func clone(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id},
	}}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	_, err = file.WriteString(text)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		t.Fatal(err)
	}
}

func wantStart(t *testing.T, path, want string) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	_, err = file.Read(got)
	if err := errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, []byte(want)) {
		t.Errorf("%s starts with %q, want %q", path, got, want)
	}
}

func wantCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	if status.Code(err) != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestCopiesHoldWhatTheirSourceHeld(t *testing.T) {
	t.Parallel()
	for kind, test := range map[string]struct {
		capability *csi.VolumeCapability
		file       func(target string) string
	}{
		"file system": {writer(), func(target string) string { return filepath.Join(target, "file") }},
		"block":       {device(), func(target string) string { return target }},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, memdriver.Config{})
			first := h.create("first", mib, test.capability, nil)
			file := test.file(h.mount(first, "a", test.capability))
			write(t, file, "before")
			source := h.snapshot("snap", first)
			write(t, file, "after!")
			restored := h.create("restored", mib, test.capability, source)
			cloned := h.create("cloned", 3*mib, test.capability, clone(first))
			wantStart(t, test.file(h.mount(restored, "b", test.capability)), "before")
			wantStart(t, test.file(h.mount(cloned, "c", test.capability)), "after!")
			// What a copy is given does not reach its source.
			write(t, test.file(h.target(cloned, "c")), "cloned")
			wantStart(t, file, "after!")
			h.unmount(first, "a")
			h.unmount(restored, "b")
			h.unmount(cloned, "c")
			h.delete(first, restored, cloned)
			if _, err := h.controller.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{
				SnapshotId: source.GetSnapshot().GetSnapshotId(),
			}); err != nil {
				t.Fatal(err)
			}
			for _, folder := range []string{"volumes", "snapshots"} {
				if left, err := os.ReadDir(filepath.Join(h.dir, "data", folder)); err != nil || len(left) > 0 {
					t.Errorf("%s has %v, %v; want it empty", folder, left, err)
				}
			}
		})
	}
}

func deviceSize(t *testing.T, path string) int64 {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	end, err := file.Seek(0, 2)
	if err := errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
	return end
}

func TestExpansionReachesADeviceInUse(t *testing.T) {
	t.Parallel()
	h := newHost(t, memdriver.Config{})
	id := h.create("v", mib, device(), nil)
	target := h.mount(id, "a", device())
	if got := deviceSize(t, target); got != mib {
		t.Errorf("%d bytes before, want %d", got, mib)
	}
	if _, err := h.controller.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: id, CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * mib},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.node.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{VolumeId: id, VolumePath: target}); err != nil {
		t.Fatal(err)
	}
	if got := deviceSize(t, target); got != 2*mib {
		t.Errorf("%d bytes after, want %d", got, 2*mib)
	}
	h.unmount(id, "a")
	h.delete(id)
}

func TestAccessModesLimitPods(t *testing.T) {
	t.Parallel()
	h := newHost(t, memdriver.Config{})
	only := fileSystem(csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER)
	one := h.create("one", mib, only, nil)
	wantCode(t, h.publish(one, "a", only, nil), codes.FailedPrecondition) // Not staged yet.
	h.mount(one, "a", only)
	wantCode(t, h.publish(one, "a", only, nil), codes.OK)
	wantCode(t, h.publish(one, "b", only, nil), codes.FailedPrecondition)
	_, err := h.controller.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: one})
	wantCode(t, err, codes.FailedPrecondition)
	h.unmount(one, "a")

	readers := fileSystem(csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY)
	many := h.create("many", mib, readers, nil)
	target := h.mount(many, "a", readers)
	wantCode(t, h.publish(many, "b", readers, nil), codes.OK)
	if err := os.WriteFile(filepath.Join(target, "f"), nil, 0o600); !errors.Is(err, syscall.EROFS) {
		t.Errorf("a write to a reader's volume: %v, want %v", err, syscall.EROFS)
	}
	h.unpublish(many, "b")
	h.unmount(many, "a")
	h.delete(one, many)
}

func (h *host) room() int64 {
	h.t.Helper()
	answer, err := h.controller.GetCapacity(h.t.Context(), &csi.GetCapacityRequest{
		AccessibleTopology: &csi.Topology{Segments: map[string]string{zone: "a"}},
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return answer.GetAvailableCapacity()
}

func TestEphemeralVolumesTakeRoomAndGoWithTheirPod(t *testing.T) {
	t.Parallel()
	h := newHost(t, memdriver.Config{Topology: map[string]string{zone: "a"}, CapacityBytes: 10 * mib})
	inline := map[string]string{"csi.storage.k8s.io/ephemeral": "true", "size": "4Mi"}
	wantCode(t, h.publish("csi-1", "a", writer(), inline), codes.OK)
	wantCode(t, h.publish("csi-1", "a", writer(), inline), codes.OK)
	write(t, filepath.Join(h.target("csi-1", "a"), "f"), "x")
	if got := h.room(); got != 6*mib {
		t.Errorf("room of %d bytes, want %d", got, 6*mib)
	}
	inline["size"] = "7Mi"
	wantCode(t, h.publish("csi-2", "b", writer(), inline), codes.ResourceExhausted)
	inline["size"] = "much"
	wantCode(t, h.publish("csi-2", "b", writer(), inline), codes.InvalidArgument)
	h.unpublish("csi-1", "a")
	if got := h.room(); got != 10*mib {
		t.Errorf("room of %d bytes after the pod, want %d", got, 10*mib)
	}
	if left := h.driver.Volumes(); len(left) > 0 {
		t.Errorf("volumes left: %v", left)
	}
}

func TestADriverKnowsTheVolumesOfTheOneBefore(t *testing.T) {
	t.Parallel()
	h := newHost(t, memdriver.Config{Topology: map[string]string{zone: "a"}})
	id := h.create("v", mib, writer(), nil)
	file := filepath.Join(h.mount(id, "a", writer()), "f")
	write(t, file, "kept")
	restored := h.create("restored", mib, writer(), h.snapshot("snap", id))
	h.driver.Stop()
	next := memdriver.Serve(t, memdriver.Config{
		Topology: map[string]string{zone: "a"}, Socket: h.driver.Socket(), Dir: filepath.Join(h.dir, "data"),
	})
	conn := dial(t, next.Socket())
	h.controller, h.node = csi.NewControllerClient(conn), csi.NewNodeClient(conn)
	if got := len(next.Volumes()); got != 2 {
		t.Errorf("%d volumes after a restart, want 2", got)
	}
	if again := h.create("v", mib, writer(), nil); again != id {
		t.Errorf("the same request made %s, want %s", again, id)
	}
	wantStart(t, file, "kept")
	h.unmount(id, "a")
	h.delete(id, restored)
	if other := h.create("w", mib, writer(), nil); other == id || other == restored {
		t.Errorf("id %s is used again", other)
	}
}

func TestKubeletIsToldOfTheDriver(t *testing.T) {
	t.Parallel()
	folder, err := os.MkdirTemp("", "reg") //nolint:usetesting // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	h := newHost(t, memdriver.Config{Registration: folder})
	client := registration.NewRegistrationClient(dial(t, filepath.Join(folder, memdriver.DefaultName+"-reg.sock")))
	info, err := client.GetInfo(t.Context(), &registration.InfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if info.GetType() != "CSIPlugin" || info.GetName() != memdriver.DefaultName || info.GetEndpoint() != h.driver.Socket() {
		t.Errorf("kubelet is told %v", info)
	}
	if done, err := h.driver.Registered(); done || err != nil {
		t.Errorf("registered before kubelet said so: %t, %v", done, err)
	}
	for _, answer := range []*registration.RegistrationStatus{{Error: "no such version"}, {PluginRegistered: true}} {
		if _, err := client.NotifyRegistrationStatus(t.Context(), answer, grpc.WaitForReady(true)); err != nil {
			t.Fatal(err)
		}
		done, err := h.driver.Registered()
		if done != answer.GetPluginRegistered() || (err == nil) != done {
			t.Errorf("after %v: registered %t, error %v", answer, done, err)
		}
	}
	begin := time.Now()
	h.driver.Stop()
	if _, err := os.Stat(filepath.Join(folder, memdriver.DefaultName+"-reg.sock")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left %s after the driver stopped: %v", time.Since(begin), err)
	}
}
