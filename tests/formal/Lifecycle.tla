------------------------------ MODULE Lifecycle ------------------------------
(* Claim, lease, renewal, recovery, sweep, mutex key, linger, finishing writes and failure job, as PostgreSQL runs them
   at READ COMMITTED.

   A transaction is one step where it holds a lock on every row it judges and changes until it commits. What it only
   read before (candidates, stale jobs, orphaned holds) is a step of its own, and may be out of date when it is used.

   There is no clock: leases and lingers count down with Tick. A pause is a worker that takes no step while Tick goes on,
   and needs no action of its own. A request that is lost changes nothing, and needs none either. A reply that is lost:
   the write is applied, and the worker does not know (`reply` FALSE). A repeated write may even have another outcome. *)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS
    Workers, Jobs,
    Keyed,                                \* the jobs that share the one mutex key
    Lease,                                \* in ticks; a linger lasts as long
    MaxAttempts, MaxStalls, MaxReleases,  \* per job; a handler releases (snoozes) at most so often
    OrphanAtStart,                        \* whether the key is held by nobody's job at first, as after a repair by hand
    Broken,                               \* the faults put in on purpose
    NoJob, Free

Faults == {"NoTokenCheck", "NoStatusGuard", "TokenKept", "RenewalWithoutToken", "LingerDropped", "HoldFreedFirst",
           "SweepWithoutRunningCheck", "SweepByKeyAlone", "NoOrphanSweep", "RecoveryUnchecked",
           "RecoveryWithoutLeaseCheck", "NoRecovery", "ClaimUnchecked", "KeyTakenUnchecked",
           "FailureJobApart", "FailureJobUnfenced", "TokenReused", "HoldLeftBehind"}

ASSUME Keyed \subseteq Jobs /\ Broken \subseteq Faults /\ Lease > 0

VARIABLES
    jobs,        \* the rows of `jobs`; `starts` and `releases` are for the invariants alone, `tok` 0 is NULL
    hold,        \* the row of `mutexes` for the key, or Free; `left` is -1 while held, else the ticks its linger lasts
    added,       \* per job: failure jobs that were committed for it
    workers,     \* what each worker believes; `gone`: ticks since its job was taken back under its running handler, or -1
    seenStale,   \* what a sweeper found stale, maybe long ago
    seenOrphan,  \* the version of the hold that a sweeper found orphaned, maybe long ago
    staleWrite   \* whether a write ever changed a row that was not running under the writer's token

vars == <<jobs, hold, added, workers, seenStale, seenOrphan, staleWrite>>

Terminal == {"completed", "failed"}
Is(fault) == fault \in Broken
Idle == [phase |-> "idle", job |-> NoJob, tok |-> 0, gone |-> -1]
HandlerRuns(w) == workers[w].phase = "run"
Runs(j, t) == jobs[j].st = "running" /\ jobs[j].tok = t
HeldBy(j, t) == hold # Free /\ hold.job = j /\ hold.tok = t
KeyIsFree == IF hold = Free THEN TRUE ELSE hold.left = 0
Freed(j, t) == IF HeldBy(j, t) /\ ~Is("HoldLeftBehind") THEN Free ELSE hold
Lingering(j, t) == IF ~HeldBy(j, t) THEN hold ELSE IF Is("LingerDropped") THEN Free ELSE [hold EXCEPT !.left = Lease]
TakenBack(j, t) == [w \in Workers |-> IF HandlerRuns(w) /\ workers[w].job = j /\ workers[w].tok = t
                                      THEN [workers[w] EXCEPT !.gone = 0] ELSE workers[w]]
Unlocked(row, st) == [row EXCEPT !.st = st, !.lease = 0, !.tok = IF Is("TokenKept") THEN @ ELSE 0]
Judged(j, t) == staleWrite' = (staleWrite \/ (jobs' # jobs /\ ~Runs(j, t)))

Init ==
    /\ jobs = [j \in Jobs |-> [st |-> "pending", tok |-> 0, lease |-> 0, attempts |-> 0, stalls |-> 0, releases |-> 0,
                               starts |-> 0]]
    /\ hold \in IF OrphanAtStart THEN {[job |-> j, tok |-> -1, left |-> -1] : j \in Keyed} ELSE {Free}
    /\ added = [j \in Jobs |-> 0]
    /\ workers = [w \in Workers |-> Idle]
    /\ seenStale = NoJob
    /\ seenOrphan = Free
    /\ staleWrite = FALSE

-----------------------------------------------------------------------------
(* A worker *)

\* candidates.find_keyed_candidates: a look without locks.
Find(w, j) ==
    /\ workers[w].phase = "idle"
    /\ jobs[j].st = "pending" /\ (j \in Keyed => KeyIsFree)
    /\ workers' = [workers EXCEPT ![w] = [Idle EXCEPT !.phase = "found", !.job = j]]
    /\ UNCHANGED <<jobs, hold, added, seenStale, seenOrphan, staleWrite>>

Claimable(j) ==
    /\ Is("ClaimUnchecked") \/ jobs[j].st = "pending"
    /\ j \in Keyed => Is("KeyTakenUnchecked") \/ KeyIsFree

\* claim.claim: LOCK_DUE and ACQUIRE judge under locks, START writes. The lease counts from START: of a transaction that
\* commits late, a part of it is over. A claim whose reply was lost runs nowhere; recall.RECALL,
\* which looks for it by its token and renews its lease, is not an action here.
\* In one statement: claim.CLAIM_PLAIN; claim_keyed.CLAIM_IN_WINDOW and CLAIM_HEADS; turn.COMPLETE_AND_CLAIM.
\* Where a key was busy after all, they give back what they got of the job's others by PUT_BACK before they commit; or
\* fail as a whole, where there is no transaction.
Claim(w, j, reply) ==
    /\ workers[w].phase = "found" /\ workers[w].job = j
    /\ Claimable(j)
    /\ LET t == IF Is("TokenReused") THEN 1 ELSE jobs[j].starts + 1 IN
       /\ \E lease \in 0..Lease :
            jobs' = [jobs EXCEPT ![j].st = "running", ![j].tok = t, ![j].starts = @ + 1, ![j].lease = lease]
       /\ hold' = IF j \in Keyed THEN [job |-> j, tok |-> t, left |-> -1] ELSE hold
       /\ workers' = [workers EXCEPT ![w] = IF reply THEN [phase |-> "run", job |-> j, tok |-> t, gone |-> -1] ELSE Idle]
    /\ UNCHANGED <<added, seenStale, seenOrphan, staleWrite>>

ClaimNothing(w) ==
    /\ workers[w].phase = "found"
    /\ ~Claimable(workers[w].job)
    /\ workers' = [workers EXCEPT ![w] = Idle]
    /\ UNCHANGED <<jobs, hold, added, seenStale, seenOrphan, staleWrite>>

\* finish.renew_leases: goes on until the result is written, and whether or not the lease has ended.
Renew(w) ==
    LET j == workers[w].job
        t == workers[w].tok IN
    /\ workers[w].phase \in {"run", "write"}
    /\ jobs[j].st = "running" /\ (Is("RenewalWithoutToken") \/ jobs[j].tok = t)
    /\ jobs' = [jobs EXCEPT ![j].lease = Lease]
    /\ Judged(j, t)
    /\ UNCHANGED <<hold, added, workers, seenStale, seenOrphan>>

HandlerEnds(w) ==
    /\ workers[w].phase = "run"
    /\ workers' = [workers EXCEPT ![w].phase = "write", ![w].gone = -1]
    /\ UNCHANGED <<jobs, hold, added, seenStale, seenOrphan, staleWrite>>

\* What finish.complete, retry_many, release_many and failure.fail make of a row; and complete_keyed.COMPLETE_KEYED and
\* turn.COMPLETE_AND_CLAIM, in one statement with the keys. finish.MARK_TIMED_OUT changes nothing that is modelled.
Outcomes(row) ==
    {Unlocked([row EXCEPT !.attempts = @ + 1], st) : st \in Terminal}
    \cup (IF row.attempts + 1 < MaxAttempts THEN {Unlocked([row EXCEPT !.attempts = @ + 1], "pending")} ELSE {})
    \cup (IF row.releases < MaxReleases THEN {Unlocked([row EXCEPT !.releases = @ + 1], "pending")} ELSE {})

Matches(j, t) ==
    /\ Is("NoStatusGuard") \/ jobs[j].st = "running"
    /\ Is("NoTokenCheck") \/ jobs[j].tok = t

\* The result is written: locks.lock_running, the write, its failure job, and locks.free_keys, in one transaction.
Finish(w, reply) ==
    LET j == workers[w].job
        t == workers[w].tok
        hit == Matches(j, t) IN
    /\ workers[w].phase = IF Is("HoldFreedFirst") THEN "freed" ELSE "write"
    /\ \E row \in Outcomes(jobs[j]) :
       LET adds == row.st = "failed" /\ (hit \/ Is("FailureJobUnfenced")) IN
       /\ jobs' = IF hit THEN [jobs EXCEPT ![j] = row] ELSE jobs
       /\ added' = IF adds /\ ~Is("FailureJobApart") THEN [added EXCEPT ![j] = @ + 1] ELSE added
       /\ workers' = [workers EXCEPT ![w] = IF ~reply THEN @
                                            ELSE IF adds /\ Is("FailureJobApart") THEN [@ EXCEPT !.phase = "add"]
                                            ELSE Idle]
    /\ hold' = Freed(j, t)
    /\ Judged(j, t)
    /\ UNCHANGED <<seenStale, seenOrphan>>

\* finish.release_many with a linger: a shutdown hands the job back under its running handler.
HandBack(w) ==
    LET j == workers[w].job
        t == workers[w].tok IN
    /\ workers[w].phase = "run"
    /\ jobs[j].releases < MaxReleases /\ Matches(j, t)
    /\ jobs' = [jobs EXCEPT ![j] = Unlocked([@ EXCEPT !.releases = @ + 1], "pending")]
    /\ hold' = Lingering(j, t)
    /\ workers' = TakenBack(j, t)
    /\ Judged(j, t)
    /\ UNCHANGED <<added, seenStale, seenOrphan>>

\* The process dies, or gives the job up since it learned that its lease is lost. Another process takes its place.
Crash(w) ==
    /\ workers[w].phase # "idle"
    /\ workers' = [workers EXCEPT ![w] = Idle]
    /\ UNCHANGED <<jobs, hold, added, seenStale, seenOrphan, staleWrite>>

\* Only in broken variants: what belongs to one transaction, in two.
FreeFirst(w) ==
    /\ Is("HoldFreedFirst") /\ workers[w].phase = "write"
    /\ hold' = Freed(workers[w].job, workers[w].tok)
    /\ workers' = [workers EXCEPT ![w].phase = "freed"]
    /\ UNCHANGED <<jobs, added, seenStale, seenOrphan, staleWrite>>

AddFailureJob(w) ==
    /\ workers[w].phase = "add"
    /\ added' = [added EXCEPT ![workers[w].job] = @ + 1]
    /\ workers' = [workers EXCEPT ![w] = Idle]
    /\ UNCHANGED <<jobs, hold, seenStale, seenOrphan, staleWrite>>

-----------------------------------------------------------------------------
(* Time and sweepers *)

Less(n) == IF n > 0 THEN n - 1 ELSE n

Tick ==
    /\ jobs' = [j \in Jobs |-> [jobs[j] EXCEPT !.lease = Less(@)]]
    /\ hold' = IF hold = Free THEN Free ELSE [hold EXCEPT !.left = Less(@)]
    /\ workers' = [w \in Workers |-> [workers[w] EXCEPT !.gone = IF @ \in 0..(Lease - 1) THEN @ + 1 ELSE @]]
    /\ UNCHANGED <<added, seenStale, seenOrphan, staleWrite>>

\* recovery.find_stale: a look without locks.
FindStale ==
    /\ ~Is("NoRecovery")
    /\ \E j \in Jobs : jobs[j].st = "running" /\ jobs[j].lease = 0 /\ seenStale' = j
    /\ UNCHANGED <<jobs, hold, added, workers, seenOrphan, staleWrite>>

\* recovery.recover_stale: LOCK_STALE judges again under the lock. What was found stays found: two sweepers, one job.
Recover ==
    LET j == seenStale
        row == [jobs[j] EXCEPT !.stalls = @ + 1]
        last == jobs[j].stalls >= MaxStalls IN
    /\ j # NoJob
    /\ Is("RecoveryUnchecked") \/ (jobs[j].st = "running" /\ (Is("RecoveryWithoutLeaseCheck") \/ jobs[j].lease = 0))
    /\ jobs' = [jobs EXCEPT ![j] = Unlocked(row, IF last THEN "failed" ELSE "pending")]
    /\ added' = IF last THEN [added EXCEPT ![j] = @ + 1] ELSE added
    /\ hold' = Lingering(j, jobs[j].tok)
    /\ workers' = TakenBack(j, jobs[j].tok)
    /\ UNCHANGED <<seenStale, seenOrphan, staleWrite>>

\* sweep.sweep_mutexes: SWEEP_LINGERS judges and deletes under the lock of its row.
SweepLinger ==
    /\ hold # Free /\ hold.left = 0
    /\ hold' = Free
    /\ UNCHANGED <<jobs, added, workers, seenStale, seenOrphan, staleWrite>>

\* SWEEP_ORPHANS judges the job by the statement's snapshot: the row it deletes must be the version it has judged.
FindOrphan ==
    /\ ~Is("NoOrphanSweep")
    /\ hold # Free /\ hold.left = -1
    /\ Is("SweepWithoutRunningCheck") \/ ~Runs(hold.job, hold.tok)
    /\ seenOrphan' = hold
    /\ UNCHANGED <<jobs, hold, added, workers, seenStale, staleWrite>>

SweepOrphan ==
    /\ seenOrphan # Free /\ hold # Free
    /\ hold = seenOrphan \/ Is("SweepByKeyAlone")
    /\ hold' = Free
    /\ UNCHANGED <<jobs, added, workers, seenStale, seenOrphan, staleWrite>>

-----------------------------------------------------------------------------

Next ==
    \/ \E w \in Workers :
        \/ \E j \in Jobs : Find(w, j) \/ (\E reply \in BOOLEAN : Claim(w, j, reply))
        \/ ClaimNothing(w) \/ Renew(w) \/ HandlerEnds(w) \/ (\E reply \in BOOLEAN : Finish(w, reply))
        \/ HandBack(w) \/ Crash(w) \/ FreeFirst(w) \/ AddFailureJob(w)
    \/ Tick \/ FindStale \/ Recover \/ SweepLinger \/ FindOrphan \/ SweepOrphan

Spec == Init /\ [][Next]_vars

(* Time passes, sweeps go on, no handler runs for ever, some write is answered in the end, and workers that crash again
   and again do claim in the end. Nothing says that a worker must not crash: stalls bound what that can do. *)
FairSpec ==
    /\ Spec
    /\ WF_vars(Tick) /\ WF_vars(FindStale) /\ SF_vars(Recover)
    /\ WF_vars(SweepLinger) /\ WF_vars(FindOrphan) /\ WF_vars(SweepOrphan)
    /\ WF_vars(\E w \in Workers, j \in Jobs : Find(w, j))
    /\ SF_vars(\E w \in Workers, j \in Jobs, reply \in BOOLEAN : Claim(w, j, reply))
    /\ \A w \in Workers : WF_vars(ClaimNothing(w)) /\ WF_vars(HandlerEnds(w)) /\ WF_vars(Finish(w, TRUE))

-----------------------------------------------------------------------------
(* Invariants. Each names the code that upholds it; the tests look whether it is there. *)

\* A job is pending, running under its newest token, or ended: never anything else, so never lost.
\* Upheld by: sqlane_sa/store/claim.py START; sqlane_sa/store/finish.py COMPLETE, COMPLETE_AND_END, RETRY, RELEASE,
\* STALL; sqlane_sa/store/failure.py FAIL; sqlane_sa/store/turn.py COMPLETE_AND_CLAIM, COMPLETE_FREE;
\* sqlane_sa/store/claim.py CLAIM_PLAIN; sqlane_sa/store/claim_keyed.py CLAIM_IN_WINDOW, CLAIM_HEADS;
\* sqlane_sa/store/complete_keyed.py COMPLETE_KEYED; sqlane_sa/store/last_step.py COMPLETE_ONE
NothingLost ==
    \A j \in Jobs :
        /\ jobs[j].st \in {"pending", "running"} \cup Terminal
        /\ jobs[j].st = "running" => jobs[j].tok = jobs[j].starts
        /\ jobs[j].lease \in 0..Lease

\* The database never has two running jobs of the key.
\* Upheld by: sqlane_sa/store/claim.py ACQUIRE, claim; sqlane_sa/store/claim_keyed.py CLAIM_IN_WINDOW, CLAIM_HEADS;
\* sqlane_sa/store/locks.py free_keys; sqlane_sa/store/complete_keyed.py COMPLETE_KEYED;
\* sqlane_sa/store/sweep.py SWEEP_ORPHANS
OneRunningPerKey == Cardinality({j \in Keyed : jobs[j].st = "running"}) <= 1

\* A running job holds the key, under its token and without an end.
\* Upheld by: sqlane_sa/store/claim.py ACQUIRE, PUT_BACK; sqlane_sa/store/claim_keyed.py CLAIM_IN_WINDOW, CLAIM_HEADS;
\* sqlane_sa/store/locks.py FREE, LINGER; sqlane_sa/store/complete_keyed.py COMPLETE_KEYED;
\* sqlane_sa/store/sweep.py SWEEP_LINGERS, SWEEP_ORPHANS
RunningHoldsKey == \A j \in Keyed : jobs[j].st = "running" => HeldBy(j, jobs[j].tok) /\ hold.left = -1

\* Nothing makes a hold without its running job.
\* Upheld by: sqlane_sa/store/claim.py claim; sqlane_sa/store/claim_keyed.py PUT_BACK;
\* sqlane_sa/store/complete_keyed.py COMPLETE_KEYED;
\* sqlane_sa/store/finish.py complete, retry_many, release_many;
\* sqlane_sa/store/failure.py fail; sqlane_sa/store/recovery.py recover_stale
NoOrphanIsMade == hold # Free /\ hold.left = -1 /\ hold.tok # -1 => Runs(hold.job, hold.tok)

\* No renewal and no finishing write changed a row that was not running under the writer's token.
\* Upheld by: sqlane_sa/store/locks.py RUNNING, LOCK_RUNNING; sqlane_sa/store/finish.py RENEW, COMPLETE,
\* MARK_TIMED_OUT; sqlane_sa/store/complete_keyed.py COMPLETE_KEYED; sqlane_sa/store/recall.py RECALL;
\* sqlane_sa/store/turn.py COMPLETE_AND_CLAIM, COMPLETE_FREE
StaleWritesChangeNothing == ~staleWrite

\* A failure job is there if and only if its job failed for good, and then there is one.
\* Upheld by: sqlane_sa/store/failure.py fail, fail_locked, _add_failure_job
OneFailureJob == \A j \in Jobs : added[j] = IF jobs[j].st = "failed" THEN 1 ELSE 0

\* Every start that is over is counted, as an attempt, a stall or a release; and the caps hold.
\* Upheld by: sqlane_sa/store/finish.py COMPLETE, RETRY, RELEASE, STALL; sqlane_sa/store/failure.py FAIL;
\* sqlane_sa/store/complete_keyed.py COMPLETE_KEYED; sqlane_sa/store/turn.py COMPLETE_AND_CLAIM, COMPLETE_FREE;
\* sqlane_sa/store/recovery.py recover_stale
StartsAreCounted ==
    \A j \in Jobs : LET row == jobs[j] IN
        /\ row.starts = row.attempts + row.stalls + row.releases + (IF row.st = "running" THEN 1 ELSE 0)
        /\ row.attempts <= MaxAttempts /\ row.stalls <= MaxStalls + 1

\* Where two handlers of the key run at once, the job of one was taken back a whole linger ago: its worker was paused,
\* or its handler went on although it was told to stop, for longer than a lease and a linger.
\* Upheld by: sqlane_sa/store/locks.py LINGER, linger_keys; sqlane_sa/store/recovery.py recover_stale;
\* sqlane_sa/store/finish.py release_many; sqlane_sa/store/claim.py READ_BUSY, ACQUIRE;
\* sqlane_sa/store/claim_keyed.py CLAIM_IN_WINDOW, CLAIM_HEADS
LingerProtects ==
    \A v, w \in Workers :
        v # w /\ HandlerRuns(v) /\ HandlerRuns(w) /\ {workers[v].job, workers[w].job} \subseteq Keyed
        => workers[v].gone = Lease \/ workers[w].gone = Lease

\* A row that has ended never changes.
\* Upheld by: sqlane_sa/store/locks.py RUNNING; sqlane_sa/store/claim.py LOCK_DUE, CLAIM_PLAIN;
\* sqlane_sa/store/complete_keyed.py COMPLETE_KEYED; sqlane_sa/store/recall.py RECALL;
\* sqlane_sa/store/claim_keyed.py CLAIM_IN_WINDOW, CLAIM_HEADS;
\* sqlane_sa/store/turn.py COMPLETE_AND_CLAIM, COMPLETE_FREE; sqlane_sa/store/recovery.py LOCK_STALE
TerminalIsFinal == [][\A j \in Jobs : jobs[j].st \in Terminal => jobs'[j] = jobs[j]]_vars

\* No job is taken back, and no stall counted, while its lease lasts.
\* Upheld by: sqlane_sa/store/recovery.py LOCK_STALE
LeaseIsRespected == [][\A j \in Jobs : jobs'[j].stalls > jobs[j].stalls => jobs[j].lease = 0]_vars

\* No handler of the key overlaps with another, ever. False, and meant to be: no queue can stop a paused machine.
NeverTwoHandlers ==
    \A v, w \in Workers : v # w /\ HandlerRuns(v) /\ HandlerRuns(w) => ~({workers[v].job, workers[w].job} \subseteq Keyed)

\* Under FairSpec each job ends, whatever crashes, however often, and whatever hold was left behind.
\* Upheld by: sqlane_sa/store/candidates.py find_keyed_candidates;
\* sqlane_sa/store/claim_keyed.py claim_keyed, claim_heads;
\* sqlane_sa/store/turn.py complete_and_claim, complete_free; sqlane_sa/store/recovery.py find_stale, recover_stale;
\* sqlane_sa/store/sweep.py sweep_mutexes
EveryJobEnds == \A j \in Jobs : <>(jobs[j].st \in Terminal)

-----------------------------------------------------------------------------
(* Fewer states. Workers are alike, and all tokens that neither the row nor the hold has any more are alike, for a token is
   never used again. *)

WorkersAreAlike == Permutations(Workers)
AllAreAlike == Permutations(Workers) \cup Permutations(Jobs)  \* where the key is of all jobs

View ==
    <<jobs, hold, added, seenStale, seenOrphan, staleWrite,
      [w \in Workers |-> LET j == workers[w].job IN
         IF j = NoJob \/ workers[w].tok = jobs[j].tok \/ HeldBy(j, workers[w].tok) THEN workers[w]
         ELSE [workers[w] EXCEPT !.tok = 0]]>>
=============================================================================
