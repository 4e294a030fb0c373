use std::collections::HashMap;

use chrono::{DateTime, Utc};

use super::answer::table_of;
use super::{Answer, PageToken, Query, Searched};
use crate::connection::{Link, Session};
use crate::model::found::{Filter, Found, State, StateWord};
use crate::model::{MsgId, Result, Topic};
use crate::store::find::{TablePosition, TableRows, by_ids, by_rows, read_table};
use crate::store::inspect::MessageTable;
use crate::store::lookup::{By, Entry, entries};
use crate::store::moment::micros;
use crate::store::row_set::RowSet;

/// How many rows of a table, or entries of the lookup, one search reads: ten thousand take some 20
/// ms, and the answer says where to continue.
pub(super) const ROWS: usize = 10_000;

/// Rows of one statement.
pub(super) const STRETCH: u32 = 2000;

/// How many entries of the lookup are searched together: as many as one list of ids holds.
const ENTRIES: u32 = 500;

/// Messages that are read together.
const READ: usize = 500;

/// Searches for messages of the topic. Reads a bounded number of rows, and locks none. A search of
/// rows may miss a message that moves between tables during it; a search by ids misses none.
pub async fn find(session: &mut Session, topic: &Topic, query: &Query) -> Result<Answer> {
    let mut search = Search { session, topic, query, answer: Answer::default() };
    match &query.after {
        None => search.begin().await?,
        Some(PageToken::Lookup(at, id)) => {
            search.lookup(Some((*at, *id))).await?;
        }
        Some(PageToken::Tables(places)) => {
            search.tables(places.clone()).await?;
            search.then_log().await?;
        }
        Some(PageToken::Log(places)) => search.log(places).await?,
    }
    Ok(search.answer)
}

pub(super) struct Search<'s> {
    pub(super) session: &'s mut Session,
    pub(super) topic: &'s Topic,
    pub(super) query: &'s Query,
    pub(super) answer: Answer,
}

impl Search<'_> {
    async fn begin(&mut self) -> Result<()> {
        let filter = &self.query.filter;
        if let Some(position) = filter.position {
            return self.at(position).await;
        }
        if filter.state == Some(StateWord::Logged) {
            return self.then_log().await;
        }
        let searchable = self.topic.settings.searchable.is_some();
        if searchable && by(filter).is_some() && self.lookup(None).await? > 0 {
            return Ok(());
        }
        if let Some(id) = filter.msg_id {
            self.answer.searched.push(Searched::MsgIds);
            let mut found = self.by_ids(&[id]).await?;
            if let Some(found) = found.remove(&id) {
                self.take(found);
                // For a message of a stream, the tables may have only its groups' copies: the log
                // is searched too.
                if !self.topic.is_stream() {
                    return Ok(());
                }
            }
        }
        let tables = match (filter.state, filter.msg_id) {
            (Some(state), None) => table_of(state).into_iter().collect(),
            // The other tables have just been searched by their keys.
            (state, Some(_)) if state.is_none_or(is_in_hot_table) => vec![MessageTable::Ready],
            (Some(_), Some(_)) => Vec::new(),
            (None, _) => MessageTable::ALL.to_vec(),
        };
        self.tables(tables.into_iter().map(|table| start(table, filter)).collect()).await?;
        self.then_log().await
    }

    /// Finds the matches that the lookup knows. Returns how many of its entries were read.
    async fn lookup(&mut self, mut after: Option<(DateTime<Utc>, MsgId)>) -> Result<usize> {
        let (filter, topic) = (&self.query.filter, self.topic.id);
        let Some(by) = by(filter) else { return Ok(0) };
        let mut seen = 0;
        let mut whole = false;
        let mut scanned = None;
        while !whole && seen < ROWS && self.answer.found.len() < self.query.limit {
            let read = async |conn: &mut Link| entries(conn, topic, by, after, ENTRIES).await;
            let some = self.session.call("look up messages", read).await?;
            whole = some.len() < ENTRIES as usize;
            let wanted: Vec<_> = some.iter().filter(|entry| is_wanted(filter, entry)).collect();
            let ids: Vec<_> = wanted.iter().map(|entry| entry.msg_id).collect();
            let mut found = self.by_ids(&ids).await?;
            let missing: Vec<_> =
                ids.iter().filter(|id| !found.contains_key(id)).copied().collect();
            if !missing.is_empty() {
                scanned = self.scan_for(&missing, &mut found).await?.or(scanned);
            }
            for entry in &some {
                seen += 1;
                after = Some((entry.enqueued_at.and_utc(), entry.msg_id));
                if is_wanted(filter, entry) {
                    let here = found
                        .remove(&entry.msg_id)
                        .unwrap_or_else(|| vec![gone(self.topic, entry)]);
                    self.take(here);
                }
                if self.answer.found.len() >= self.query.limit {
                    whole = whole && seen_last(&some, entry);
                    break;
                }
            }
        }
        self.answer.searched.push(Searched::Lookup { entries: seen, whole });
        self.answer.searched.extend(scanned);
        self.answer.next = after.filter(|_| !whole).map(|(at, id)| PageToken::Lookup(at, id));
        Ok(seen)
    }

    /// Reads messages by their ids: those of this topic, or else those that were moved to another.
    async fn by_ids(&mut self, ids: &[MsgId]) -> Result<HashMap<MsgId, Vec<Found>>> {
        let mut by_id: HashMap<MsgId, Vec<Found>> = HashMap::new();
        if ids.is_empty() {
            return Ok(by_id);
        }
        let (topic, bodies) = (self.topic.id, self.query.bodies);
        let read = async |conn: &mut Link| by_ids(conn, topic, ids, bodies).await;
        let rows = self.session.call("find messages by their ids", read).await?;
        let (here, elsewhere): (Vec<_>, Vec<_>) =
            rows.into_iter().partition(|(id, _)| *id == topic);
        for (_, found) in here {
            by_id.entry(found.msg_id).or_default().push(found);
        }
        for (_, found) in elsewhere {
            let of_here = |found: &Found| found.topic == self.topic.name.as_str();
            let known = by_id.entry(found.msg_id).or_default();
            if !known.iter().any(of_here) {
                known.push(found);
            }
        }
        Ok(by_id)
    }

    /// Searches for ready messages whose row is not in the lookup, in a bounded number of rows.
    async fn scan_for(
        &mut self,
        ids: &[MsgId],
        found: &mut HashMap<MsgId, Vec<Found>>,
    ) -> Result<Option<Searched>> {
        let any = Filter::default();
        let place = start(MessageTable::Ready, &any);
        let (places, scanned) = self.scan(ids, &any, place, ids.len()).await?;
        for one in self.read(MessageTable::Ready, &places).await? {
            found.entry(one.msg_id).or_default().push(one);
        }
        let Scanned { rows, rest } = scanned;
        let whole = rest.is_none();
        Ok(Some(Searched::Table { table: MessageTable::Ready, rows, whole }))
    }

    /// Searches tables row by row, from these places on.
    async fn tables(&mut self, places: Vec<TablePosition>) -> Result<()> {
        let filter = &self.query.filter;
        let mut rest = Vec::new();
        for place in places {
            let room = self.query.limit.saturating_sub(self.answer.found.len());
            if room == 0 {
                rest.push(place);
                continue;
            }
            let (hits, scanned) = self.scan(filter.msg_id.as_slice(), filter, place, room).await?;
            let found = self.read(place.table, &hits).await?;
            self.take(found);
            let whole = scanned.rest.is_none();
            let rows = scanned.rows;
            self.answer.searched.push(Searched::Table { table: place.table, rows, whole });
            rest.extend(scanned.rest);
        }
        self.answer.next = Some(rest).filter(|rest| !rest.is_empty()).map(PageToken::Tables);
        Ok(())
    }

    /// Returns the first `limit` matches among the next rows of a table.
    async fn scan(
        &mut self,
        ids: &[MsgId],
        filter: &Filter,
        mut from: TablePosition,
        limit: usize,
    ) -> Result<(Vec<TablePosition>, Scanned)> {
        let topic = self.topic.id;
        let (mut hits, mut rows) = (Vec::new(), 0);
        while rows < ROWS {
            let look =
                async |conn: &mut Link| read_table(conn, topic, ids, filter, from, STRETCH).await;
            let TableRows { wanted, seen, last } =
                self.session.call("search a table", look).await?;
            rows += seen;
            let room = limit - hits.len();
            hits.extend(wanted.iter().take(room));
            if wanted.len() > room || (hits.len() == limit && last.is_some()) {
                let rest = hits.last().copied();
                return Ok((hits, Scanned { rows, rest }));
            }
            let Some(last) = last else { return Ok((hits, Scanned { rows, rest: None })) };
            from = last;
        }
        Ok((hits, Scanned { rows, rest: Some(from) }))
    }

    /// Reads the rows at these places, in their order.
    async fn read(&mut self, table: MessageTable, places: &[TablePosition]) -> Result<Vec<Found>> {
        let bodies = self.query.bodies;
        let mut rows = HashMap::new();
        for some in places.chunks(READ) {
            let set: RowSet = some.iter().map(|place| place.row).collect();
            let read = async |conn: &mut Link| by_rows(conn, table, &set, bodies).await;
            let found = self.session.call("read what was found", read).await?;
            rows.extend(found.into_iter().filter_map(|one| Some((one.trace.as_ref()?.row, one))));
        }
        // A row that is gone was moved in the meantime.
        Ok(places.iter().filter_map(|place| rows.remove(&place.row)).collect())
    }

    /// Keeps the matches: a search by id has not checked the rest of the filter.
    pub(super) fn take(&mut self, found: Vec<Found>) {
        let filter = &self.query.filter;
        self.answer.found.extend(found.into_iter().filter(|one| meets(one, filter)));
    }
}

/// The extent of a table's search.
struct Scanned {
    rows: usize,
    /// Where to continue; `None` at its end.
    rest: Option<TablePosition>,
}

/// The best index of the lookup for the filter, if there is one.
fn by(filter: &Filter) -> Option<By<'_>> {
    if let Some(id) = filter.msg_id {
        return Some(By::MsgId(id));
    }
    let by = filter.biz_id.as_deref().map(By::BizId);
    let by = by.or(filter.key.as_deref().map(By::Key));
    let timed = filter.since.is_some() || filter.before.is_some();
    by.or((timed && filter.state.is_none()).then_some(By::Time(filter.since, filter.before)))
}

fn is_wanted(filter: &Filter, entry: &Entry) -> bool {
    let at = entry.enqueued_at.and_utc();
    filter.msg_id.is_none_or(|id| id == entry.msg_id)
        && filter.biz_id.as_ref().is_none_or(|biz_id| entry.biz_id.as_ref() == Some(biz_id))
        && filter.key.as_ref().is_none_or(|key| entry.key.as_ref() == Some(key))
        && filter.since.is_none_or(|since| at >= since)
        && filter.before.is_none_or(|before| at < before)
}

fn meets(found: &Found, filter: &Filter) -> bool {
    let is = |has: &Option<String>, wanted: &Option<Vec<u8>>| {
        let wanted = wanted.as_deref().map(String::from_utf8_lossy);
        wanted.is_none_or(|wanted| has.as_deref() == Some(&*wanted))
    };
    let said = found.trace.as_ref().and_then(|trace| trace.error.as_deref());
    let says = |text: &str| said.is_some_and(|said| said.contains(text));
    is(&found.biz_id, &filter.biz_id)
        && is(&found.key, &filter.key)
        && filter.since.is_none_or(|since| found.enqueued_at >= since)
        && filter.before.is_none_or(|before| found.enqueued_at < before)
        && filter.state.is_none_or(|state| state == found.state.word())
        && filter.error.as_deref().is_none_or(says)
        && filter.header.as_ref().is_none_or(|(name, value)| {
            let headers = found.trace.as_ref().map(|trace| &trace.headers);
            headers.and_then(|headers| headers.get(name)) == Some(value)
        })
}

fn is_in_hot_table(state: StateWord) -> bool {
    table_of(state) == Some(MessageTable::Ready)
}

fn seen_last(some: &[Entry], entry: &Entry) -> bool {
    some.last().is_some_and(|last| last.msg_id == entry.msg_id)
}

/// Where the search of a table begins: a message that died or was settled before a time was also
/// enqueued before it.
fn start(table: MessageTable, filter: &Filter) -> TablePosition {
    let ends = matches!(table, MessageTable::Dead | MessageTable::Archive);
    let at = filter.since.filter(|_| ends).map_or(0, micros);
    TablePosition { table, at, row: crate::model::RowId(0) }
}

fn gone(topic: &Topic, entry: &Entry) -> Found {
    let text = |bytes: &Option<Vec<u8>>| {
        bytes.as_ref().map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    };
    Found {
        topic: topic.name.to_string(),
        msg_id: entry.msg_id,
        state: State::Gone,
        enqueued_at: entry.enqueued_at.and_utc(),
        key: text(&entry.key),
        biz_id: text(&entry.biz_id),
        trace: None,
    }
}
