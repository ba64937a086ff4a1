package framework

import (
	"errors"
	"fmt"
	"slices"

	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// A point is an extension point: its name in KubeSchedulerConfiguration, its plugin set there, and
// how a profile takes a plugin into it.
type point struct {
	name string
	set  func(*configv1.Plugins) *configv1.PluginSet
	// add reports whether the plugin has this extension point.
	add func(*Profile, fwk.Plugin, int64) bool
}

func points() []point {
	return []point{
		{"preEnqueue", func(c *configv1.Plugins) *configv1.PluginSet { return &c.PreEnqueue }, into(func(p *Profile) *[]fwk.PreEnqueuePlugin { return &p.preEnqueue }, measurePreEnqueue)},
		{"queueSort", func(c *configv1.Plugins) *configv1.PluginSet { return &c.QueueSort }, into(func(p *Profile) *[]fwk.QueueSortPlugin { return &p.queueSort }, asIs)},
		{"preFilter", func(c *configv1.Plugins) *configv1.PluginSet { return &c.PreFilter }, into(func(p *Profile) *[]fwk.PreFilterPlugin { return &p.preFilter }, measurePreFilter)},
		{"filter", func(c *configv1.Plugins) *configv1.PluginSet { return &c.Filter }, addFilter},
		{"postFilter", func(c *configv1.Plugins) *configv1.PluginSet { return &c.PostFilter }, into(func(p *Profile) *[]fwk.PostFilterPlugin { return &p.postFilter }, measurePostFilter)},
		{"podGroupPostFilter", func(c *configv1.Plugins) *configv1.PluginSet { return &c.PodGroupPostFilter }, into(func(p *Profile) *[]fwk.PodGroupPostFilterPlugin { return &p.podGroupPostFilter }, measurePodGroupPostFilter)},
		{"placementGenerate", func(c *configv1.Plugins) *configv1.PluginSet { return &c.PlacementGenerate }, into(func(p *Profile) *[]fwk.PlacementGeneratePlugin { return &p.placementGenerate }, measurePlacementGenerate)},
		{"placementScore", func(c *configv1.Plugins) *configv1.PluginSet { return &c.PlacementScore }, addPlacementScore},
		{"preScore", func(c *configv1.Plugins) *configv1.PluginSet { return &c.PreScore }, into(func(p *Profile) *[]fwk.PreScorePlugin { return &p.preScore }, measurePreScore)},
		{"score", func(c *configv1.Plugins) *configv1.PluginSet { return &c.Score }, addScore},
		{"reserve", func(c *configv1.Plugins) *configv1.PluginSet { return &c.Reserve }, into(func(p *Profile) *[]fwk.ReservePlugin { return &p.reserve }, measureReserve)},
		{"permit", func(c *configv1.Plugins) *configv1.PluginSet { return &c.Permit }, into(func(p *Profile) *[]fwk.PermitPlugin { return &p.permit }, measurePermit)},
		{"preBind", func(c *configv1.Plugins) *configv1.PluginSet { return &c.PreBind }, into(func(p *Profile) *[]fwk.PreBindPlugin { return &p.preBind }, measurePreBind)},
		{"bind", func(c *configv1.Plugins) *configv1.PluginSet { return &c.Bind }, into(func(p *Profile) *[]fwk.BindPlugin { return &p.bind }, measureBind)},
		{"postBind", func(c *configv1.Plugins) *configv1.PluginSet { return &c.PostBind }, into(func(p *Profile) *[]fwk.PostBindPlugin { return &p.postBind }, measurePostBind)},
	}
}

func into[T fwk.Plugin](list func(*Profile) *[]T, measure func(profile string, pl T) T) func(*Profile, fwk.Plugin, int64) bool {
	return func(p *Profile, pl fwk.Plugin, _ int64) bool {
		t, ok := pl.(T)
		if ok {
			*list(p) = append(*list(p), measure(p.Name, t))
		}
		return ok
	}
}

func asIs(_ string, pl fwk.QueueSortPlugin) fwk.QueueSortPlugin { return pl }

func addFilter(p *Profile, pl fwk.Plugin, _ int64) bool {
	f, ok := pl.(fwk.FilterPlugin)
	if ok {
		p.filter = append(p.filter, filterer{f, counting(pl.Name(), "Filter", p.Name)})
	}
	return ok
}

func addScore(p *Profile, pl fwk.Plugin, weight int64) bool {
	sp, ok := pl.(fwk.ScorePlugin)
	if ok {
		p.score = append(p.score, scorer{
			measuredScore{sp, newMeter(pl.Name(), "ScoreExtensionNormalize")}, max(1, weight), len(p.score),
			counting(pl.Name(), "Score", p.Name),
		})
	}
	return ok
}

func addPlacementScore(p *Profile, pl fwk.Plugin, weight int64) bool {
	sp, ok := pl.(fwk.PlacementScorePlugin)
	if ok {
		p.placementScore = append(p.placementScore, placementScorer{sp, max(1, weight), newMeter(pl.Name(), "PlacementScore")})
	}
	return ok
}

// Sets returns the plugin sets of a configuration by their names in it, multiPoint among them.
func Sets(c *configv1.Plugins) map[string]*configv1.PluginSet {
	out := map[string]*configv1.PluginSet{"multiPoint": &c.MultiPoint}
	for _, p := range points() {
		out[p.name] = p.set(c)
	}
	return out
}

// Merge returns the default plugins as a profile changes them. A profile's multiPoint set takes from
// the default one what it disables; what it enables again takes its old place with its new weight,
// and what is new comes last. Every other set is the profile's own.
func Merge(defaults, custom *configv1.Plugins) *configv1.Plugins {
	if custom == nil {
		return defaults
	}
	out := *custom
	off := func(name string) bool {
		return slices.ContainsFunc(custom.MultiPoint.Disabled, func(p configv1.Plugin) bool { return p.Name == name || p.Name == "*" })
	}
	var enabled []configv1.Plugin
	replaced := map[string]bool{}
	for _, d := range defaults.MultiPoint.Enabled {
		if off(d.Name) {
			continue
		}
		if i := slices.IndexFunc(custom.MultiPoint.Enabled, func(p configv1.Plugin) bool { return p.Name == d.Name }); i >= 0 {
			d = custom.MultiPoint.Enabled[i]
			replaced[d.Name] = true
		}
		enabled = append(enabled, d)
	}
	for _, e := range custom.MultiPoint.Enabled {
		if !replaced[e.Name] {
			enabled = append(enabled, e)
		}
	}
	out.MultiPoint = configv1.PluginSet{Enabled: enabled, Disabled: custom.MultiPoint.Disabled}
	return &out
}

// register takes plugins into one extension point, in this order: those that the point itself
// enables and that are in multiPoint, too; those of multiPoint that the point does not disable; and
// the rest of its own.
func (p *Profile) register(pt point, c *configv1.Plugins, weights map[string]int64) error {
	set := pt.set(c)
	own := map[string]bool{}
	for _, e := range set.Enabled {
		if own[e.Name] {
			return fmt.Errorf("%s: plugin %q is enabled twice", pt.name, e.Name)
		}
		own[e.Name] = true
	}
	multi := map[string]bool{}
	for _, e := range c.MultiPoint.Enabled {
		if multi[e.Name] {
			return fmt.Errorf("multiPoint: plugin %q is enabled twice", e.Name)
		}
		multi[e.Name] = true
	}
	add := func(name string) error {
		if !pt.add(p, p.byName[name], weights[name]) {
			return fmt.Errorf("%s: plugin %q does not have this extension point", pt.name, name)
		}
		return nil
	}
	var err error
	for _, e := range set.Enabled {
		if multi[e.Name] {
			err = errors.Join(err, add(e.Name))
		}
	}
	off := func(name string) bool {
		return slices.ContainsFunc(set.Disabled, func(d configv1.Plugin) bool { return d.Name == name || d.Name == "*" })
	}
	for _, e := range c.MultiPoint.Enabled {
		if !own[e.Name] && !off(e.Name) {
			_ = pt.add(p, p.byName[e.Name], weights[e.Name]) // it need not have this point
		}
	}
	for _, e := range set.Enabled {
		if !multi[e.Name] {
			err = errors.Join(err, add(e.Name))
		}
	}
	return err
}

// weights returns the weight of every plugin at an extension point: the one of its set, or the one of multiPoint.
func weights(c *configv1.Plugins, pt point) map[string]int64 {
	out := map[string]int64{}
	for _, set := range []configv1.PluginSet{c.MultiPoint, *pt.set(c)} {
		for _, e := range set.Enabled {
			if e.Weight != nil && *e.Weight != 0 {
				out[e.Name] = int64(*e.Weight)
			}
		}
	}
	return out
}

// enabled returns all plugins that a configuration enables anywhere, in order.
func enabled(c *configv1.Plugins) []string {
	var out []string
	add := func(set *configv1.PluginSet) {
		for _, e := range set.Enabled {
			if !slices.Contains(out, e.Name) {
				out = append(out, e.Name)
			}
		}
	}
	add(&c.MultiPoint)
	for _, p := range points() {
		add(p.set(c))
	}
	return out
}
