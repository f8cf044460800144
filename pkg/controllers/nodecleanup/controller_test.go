package nodecleanup

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// Nothing is asked while nobody waits, and nothing about what is gone again by the next round.
func TestAHealthyClusterCostsNothing(t *testing.T) {
	inScene(t, func(s *scene) {
		s.pass(10 * time.Minute)
		claim, pv := waiting(1, "lost"), leftover(1, "lost")
		s.onClaim(nil, claim)
		s.onPV(nil, pv)
		s.pass(20 * time.Second)
		bound := claim.DeepCopy()
		bound.Spec.VolumeName = "pv"
		s.onClaim(claim, bound)
		s.onPV(pv, nil)
		s.pass(10 * time.Minute)
		if actions := s.client.Actions(); len(actions) != 0 {
			s.Errorf("requests: %v", actions)
		}
	})
}

// Claims of one node cost two requests a round, however many they are, until their time has come.
func TestClaimsOfOneNodeShareALook(t *testing.T) {
	objects := []runtime.Object{fixture.Node("bare", nil)}
	for n := range 50 {
		objects = append(objects, waiting(n, "bare"))
	}
	inScene(t, func(s *scene) {
		s.pass(defaultInterval + defaultClaimGrace)
		if got := s.count("get nodes", "get csinodes"); got != 2*2 {
			s.Errorf("%d requests in the first two looks", got)
		}
		if got := s.count("update persistentvolumeclaims"); got != 0 {
			s.Errorf("%d writes before the grace was over", got)
		}
		s.pass(defaultInterval)
		if got := s.count("update persistentvolumeclaims"); got != 50 {
			s.Errorf("%d writes, want 50", got)
		}
	}, objects...)
}

// A round writes a hundred claims at most; the next one goes on with the others, also when none of the writes is seen.
func TestARoundIsBounded(t *testing.T) {
	var objects []runtime.Object
	for n := range 250 {
		objects = append(objects, waiting(n, "lost"))
	}
	inScene(t, func(s *scene) {
		s.pass(2*defaultInterval + defaultClaimGrace)
		for _, want := range []int{100, 200, 250, 250} { // what is not seen is read again, and found done
			if got := s.count("update persistentvolumeclaims"); got != want {
				s.Errorf("%d writes, want %d", got, want)
			}
			s.pass(defaultInterval)
		}
	}, objects...)
}

// Without an answer nothing is given up, and the time begins anew.
func TestNothingIsGivenUpWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	away := apierrors.NewInternalError(fmt.Errorf("etcd is away"))
	for name, resource := range map[string]string{"nodes cannot be read": "nodes", "csinodes cannot be read": "csinodes"} {
		t.Run(name, func(t *testing.T) {
			inScene(t, func(s *scene) {
				s.pass(defaultInterval + defaultClaimGrace)
				heal := s.fails("*", resource, away)
				s.pass(time.Hour)
				if s.selected("c-001") == "" {
					s.Error("the claim was given up")
				}
				if there := s.hasPV("pv-001"); there != (resource == "nodes") { // the questions about it are about nodes only
					s.Errorf("the PersistentVolume is there: %v", there)
				}
				heal()
				s.pass(defaultClaimGrace)
				if s.selected("c-001") == "" {
					s.Error("the time did not begin anew")
				}
				s.pass(2 * defaultInterval)
				if s.selected("c-001") != "" {
					s.Error("the claim was not given up in the end")
				}
			}, fixture.Node("bare", nil), waiting(1, "bare"), leftover(1, "lost"))
		})
	}
}

// A node that is there again at the look before the write keeps what it has, and its grace begins anew.
func TestTheSecondLookCounts(t *testing.T) {
	inScene(t, func(s *scene) {
		s.pass(2*defaultInterval + defaultVolumeGrace - time.Second)
		// In the round in which the grace is over, the first look of each object finds nothing, the second one the node.
		looks := 0
		s.react("*", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if looks++; looks%2 == 1 || looks > 2 {
				return false, nil, nil
			}
			node := fixture.Node("lost", map[string]string{"host": "lost"})
			if action.GetVerb() == "list" {
				return true, &corev1.NodeList{Items: []corev1.Node{*node}}, nil
			}
			return true, node, nil
		})
		s.react("get", "csinodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, fixture.CSINode("lost", testDriver, nil), nil
		})
		kept := func() bool {
			return s.hasPV("pv-001")
		}
		s.pass(2 * time.Second)
		if looks != 2 || !kept() {
			s.Fatalf("something was given up after %d looks", looks)
		}
		s.pass(defaultVolumeGrace)
		if !kept() {
			s.Error("the grace did not begin anew")
		}
		s.pass(4 * defaultInterval)
		if kept() {
			s.Error("nothing was given up in the end")
		}
	}, leftover(1, "lost"))
}

// Each write has a look of its own before it: a node that comes back while a round writes keeps what is left.
func TestEachWriteHasItsOwnLook(t *testing.T) {
	inScene(t, func(s *scene) {
		var once sync.Once
		back := func(clienttesting.Action) (bool, runtime.Object, error) {
			once.Do(func() {
				for _, object := range []runtime.Object{fixture.Node("lost", map[string]string{"host": "lost"}), fixture.CSINode("lost", testDriver, nil)} {
					if err := s.client.Tracker().Add(object); err != nil {
						s.Error(err)
					}
				}
			})
			return false, nil, nil
		}
		s.react("update", "persistentvolumeclaims", back)
		s.react("delete", "persistentvolumes", back)
		s.pass(time.Hour)
		if s.selected("c-001") != "" {
			s.Error("the first claim was not taken off the node")
		}
		if s.selected("c-002") != "lost" || !s.hasPV("pv-001") {
			s.Error("something was given up while the node was there")
		}
	}, waiting(1, "lost"), waiting(2, "lost"), leftover(1, "lost"))
}

// A node that comes back while the first of its PersistentVolumes is removed keeps the second.
func TestEachRemovalHasItsOwnLook(t *testing.T) {
	inScene(t, func(s *scene) {
		var once sync.Once
		s.react("delete", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) {
			once.Do(func() {
				if err := s.client.Tracker().Add(fixture.Node("lost", map[string]string{"host": "lost"})); err != nil {
					s.Error(err)
				}
			})
			return false, nil, nil
		})
		s.pass(time.Hour)
		if s.hasPV("pv-001") || !s.hasPV("pv-002") {
			s.Errorf("first PersistentVolume there: %v, second: %v", s.hasPV("pv-001"), s.hasPV("pv-002"))
		}
	}, leftover(1, "lost"), leftover(2, "lost"))
}

// A node that cannot be read, or whose name no Node can have, keeps only what hangs on itself.
func TestOneNodeDoesNotKeepTheOthers(t *testing.T) {
	t.Parallel()
	broken := apierrors.NewInternalError(fmt.Errorf("etcd is away"))
	for name, tc := range map[string]struct {
		node string
		fail bool
		want string // the node of its claim in the end
	}{
		"it cannot be read":     {node: "broken", fail: true, want: "broken"},
		"a name with a slash":   {node: "a/b"},
		"the parent directory":  {node: ".."},
		"a name with a percent": {node: "a%2fb"},
	} {
		t.Run(name, func(t *testing.T) {
			inScene(t, func(s *scene) {
				s.react("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
					if get, ok := action.(clienttesting.GetAction); ok && action.GetResource().Resource == "nodes" {
						if strings.ContainsAny(get.GetName(), "/%") || get.GetName() == ".." {
							return true, nil, fmt.Errorf("invalid resource name %q", get.GetName()) // as the real client
						}
						if tc.fail && get.GetName() == tc.node {
							return true, nil, broken
						}
					}
					return false, nil, nil
				})
				s.pass(2*defaultInterval + defaultVolumeGrace)
				if got := s.selected("c-002"); got != "" {
					s.Errorf("the claim of the lost node is for %q", got)
				}
				if s.hasPV("pv-001") {
					s.Error("the PersistentVolume of the lost node is there")
				}
				if got := s.selected("c-001"); got != tc.want {
					s.Errorf("the claim of node %q is for %q, want %q", tc.node, got, tc.want)
				}
			}, waiting(1, tc.node), waiting(2, "lost"), leftover(1, "lost"))
		})
	}
}

// A label that no node can be asked for keeps only its own PersistentVolume.
func TestOneListDoesNotKeepTheOthers(t *testing.T) {
	inScene(t, func(s *scene) {
		s.react("list", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
			refused := strings.Contains(action.(clienttesting.ListAction).GetListRestrictions().Labels.String(), "broken")
			return refused, nil, apierrors.NewInternalError(fmt.Errorf("etcd is away"))
		})
		s.pass(2*defaultInterval + defaultVolumeGrace)
		if !s.hasPV("pv-001") || s.hasPV("pv-002") {
			s.Errorf("first PersistentVolume there: %v, second: %v", s.hasPV("pv-001"), s.hasPV("pv-002"))
		}
	}, leftover(1, "broken"), leftover(2, "lost"))
}

// A read that fails now and then, of this node or of another one, does not restart the grace.
func TestAFailedReadNowAndThen(t *testing.T) {
	t.Parallel()
	for name, node := range map[string]string{"of this node": "lost", "of another node": "alive"} {
		t.Run(name, func(t *testing.T) {
			inScene(t, func(s *scene) {
				var last time.Time
				s.react("get", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
					if action.(clienttesting.GetAction).GetName() == node && time.Since(last) > 4*time.Minute {
						last = time.Now()
						return true, nil, apierrors.NewInternalError(fmt.Errorf("etcd changed its leader"))
					}
					return false, nil, nil
				})
				s.pass(4*defaultInterval + defaultClaimGrace)
				if s.selected("c-002") != "" {
					s.Error("the claim waits for the node that is gone")
				}
			}, fixture.Node("alive", nil), waiting(1, "alive"), waiting(2, "lost"))
		})
	}
}

// What waits for healthy nodes costs few requests.
func TestHealthyNodesCostLittle(t *testing.T) {
	const nodes = 100
	var objects []runtime.Object
	for n := range nodes {
		name := fmt.Sprint("n", n)
		objects = append(objects, fixture.Node(name, map[string]string{"host": name}), fixture.CSINode(name, testDriver, nil), waiting(n, name))
		if n < nodes/2 {
			objects = append(objects, leftover(n, name))
		}
	}
	inScene(t, func(s *scene) {
		kinds := []string{"get nodes", "list nodes", "get csinodes"}
		s.pass(5 * time.Minute)
		before := s.count(kinds...)
		s.pass(time.Hour)
		if perSecond := float64(s.count(kinds...)-before) / 3600; perSecond > 1 {
			s.Errorf("%.1f requests a second", perSecond)
		}
		// A node that goes is found out all the same.
		for _, resource := range []string{"nodes", "csinodes"} {
			group := corev1.SchemeGroupVersion
			if resource == "csinodes" {
				group = storagev1.SchemeGroupVersion
			}
			if err := s.client.Tracker().Delete(group.WithResource(resource), "", "n0"); err != nil {
				s.Error(err)
			}
		}
		s.pass((maxPause+2)*defaultInterval + defaultVolumeGrace)
		if s.selected("c-000") != "" || s.hasPV("pv-000") {
			s.Error("what hangs on the node that went was not ended")
		}
	}, objects...)
}

// What has changed behind the cache is not touched.
func TestAChangeBehindTheCacheWins(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(s *scene){
		"the policy of the volume": func(s *scene) {
			pv := leftover(1, "lost")
			pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
			s.update(pv)
		},
		"the volume was made anew": func(s *scene) {
			pv := leftover(1, "lost")
			pv.UID = "p-2"
			s.update(pv)
		},
		"the volume is attached": func(s *scene) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.attached = []*storagev1.VolumeAttachment{fixture.Attachment("a", "attacher", "pv-001", "n")}
		},
		"the volume changes in this moment": func(s *scene) {
			s.fails("delete", "persistentvolumes", apierrors.NewConflict(schema.GroupResource{Resource: "persistentvolumes"}, "pv-001", fmt.Errorf("changed")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			inScene(t, func(s *scene) {
				change(s)
				s.pass(time.Hour)
				if !s.hasPV("pv-001") || s.count("patch persistentvolumes") != 0 {
					s.Error("the volume was given up")
				}
				if told := s.told(); told != "" {
					s.Errorf("told: %s", told)
				}
			}, leftover(1, "lost"))
		})
	}
}

func (s *scene) update(pv *corev1.PersistentVolume) {
	s.Helper()
	if _, err := s.client.CoreV1().PersistentVolumes().Update(s.Context(), pv, metav1.UpdateOptions{}); err != nil {
		s.Fatal(err)
	}
}

// A claim that was given another node behind the cache keeps that.
func TestAClaimWithAnotherNodeBehindTheCache(t *testing.T) {
	inScene(t, func(s *scene) {
		if _, err := s.client.CoreV1().PersistentVolumeClaims("default").Update(s.Context(), waiting(1, "up"), metav1.UpdateOptions{}); err != nil {
			s.Fatal(err)
		}
		s.pass(time.Hour)
		if got := s.selected("c-001"); got != "up" {
			s.Errorf("the claim is for node %q", got)
		}
		if told := s.told(); told != "" {
			s.Errorf("told: %s", told)
		}
	}, waiting(1, "lost"))
}

// The finalizer goes in the next round when it cannot go in this one, and the object is deleted once.
func TestAnAbandonedVolumeIsFinished(t *testing.T) {
	inScene(t, func(s *scene) {
		s.react("delete", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) {
			pv := leftover(1, "lost") // the API server keeps it for its finalizer
			pv.DeletionTimestamp = &metav1.Time{Time: time.Now()}
			return true, nil, s.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), pv, "")
		})
		heal := s.fails("patch", "persistentvolumes", apierrors.NewInternalError(fmt.Errorf("away")))
		s.pass(2*defaultInterval + defaultVolumeGrace)
		heal()
		s.pass(2 * defaultInterval)
		if got := s.count("delete persistentvolumes"); got != 1 {
			s.Errorf("deleted %d times", got)
		}
		pv, err := s.client.CoreV1().PersistentVolumes().Get(s.Context(), "pv-001", metav1.GetOptions{})
		if err != nil || slices.Contains(pv.Finalizers, wellknown.FinalizerPV) {
			s.Errorf("the finalizer is still there: %v, %v", pv, err)
		}
		if told := s.told(); !strings.Contains(told, "Warning NodeGone") || !strings.Contains(told, "handle-pv-001") {
			s.Errorf("told: %s", told)
		}
	}, leftover(1, "lost"))
}

// Each term counts for itself: between two of them nobody has looked.
func TestATermRemembersNothingOfTheOneBefore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &scene{T: t, client: fake.NewClientset(waiting(1, "lost")), recorder: record.NewFakeRecorder(10)}
		var err error
		if s.c, err = New(Config{Cache: s, Client: s.client, Recorder: s.recorder, Driver: testDriver}); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			end := s.run()
			s.onClaim(nil, waiting(1, "lost"))
			s.pass(defaultInterval + defaultClaimGrace)
			end()
		}
		if s.selected("c-001") == "" {
			t.Error("three short terms made a long one")
		}
		end := s.run()
		s.pass(2*defaultInterval + defaultClaimGrace)
		end()
		if s.selected("c-001") != "" {
			t.Error("the claim was not given up in the end")
		}
	})
}

func TestNewChecksItsConfig(t *testing.T) {
	t.Parallel()
	good := Config{Cache: &scene{}, Client: fake.NewClientset(), Recorder: record.NewFakeRecorder(1), Driver: testDriver}
	for name, edit := range map[string]func(*Config){
		"no cache":         func(c *Config) { c.Cache = nil },
		"no client":        func(c *Config) { c.Client = nil },
		"no recorder":      func(c *Config) { c.Recorder = nil },
		"no driver":        func(c *Config) { c.Driver = "" },
		"a negative pause": func(c *Config) { c.Interval = -1 },
		"a negative grace": func(c *Config) { c.VolumeGrace = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := good
			edit(&cfg)
			if _, err := New(cfg); err == nil {
				t.Error("no error")
			}
		})
	}
	if c, err := New(good); err != nil || c.cfg.Interval != defaultInterval || c.cfg.ClaimGrace != defaultClaimGrace || c.cfg.VolumeGrace != defaultVolumeGrace {
		t.Errorf("defaults: %v, %v", c, err)
	}
}

// An empty page is no answer while there are others.
func TestANodeOnALaterPageCounts(t *testing.T) {
	inScene(t, func(s *scene) {
		s.react("list", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
			page := &corev1.NodeList{}
			if list, ok := action.(clienttesting.ListActionImpl); ok && list.ListOptions.Continue == "" {
				page.Continue = "more"
			} else {
				page.Items = []corev1.Node{*fixture.Node("late", map[string]string{"host": "lost"})}
			}
			return true, page, nil
		})
		s.pass(time.Hour)
		if !s.hasPV("pv-001") {
			s.Error("the volume was given up")
		}
	}, leftover(1, "lost"))
}
