package framework

import fwk "k8s.io/kube-scheduler/framework"

// Normalize scales scores to [0, 100], and reverses them if a low one is better.
func Normalize(scores fwk.NodeScoreList, reverse bool) {
	var top int64
	for _, s := range scores {
		top = max(top, s.Score)
	}
	for i := range scores {
		if top > 0 {
			scores[i].Score = scores[i].Score * fwk.MaxScore / top
		}
		if reverse {
			scores[i].Score = fwk.MaxScore - scores[i].Score
		}
	}
}
